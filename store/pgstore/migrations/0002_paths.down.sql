DROP TABLE {{schema}}.paths;
