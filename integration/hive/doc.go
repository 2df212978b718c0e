// Package hive holds what publishes into Hive are put through on a real
// HiveServer2 with its warehouse on a real HDFS: whole publishes, connections
// cut at every call, processes killed at every point, readers meanwhile. It has
// tests only.
package hive
