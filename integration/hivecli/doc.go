// Package hivecli holds the command line to a real HiveServer2 with its warehouse
// on a real HDFS: what an operator types from a configuration file to a decision.
// It has tests only.
package hivecli
