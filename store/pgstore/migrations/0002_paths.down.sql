-- Which source and cleanup paths were used is forgotten: a plan that uses one again is accepted then.
DROP TABLE {{schema}}.paths;
