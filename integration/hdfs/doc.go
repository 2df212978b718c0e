// Package hdfs proves the engine on a real name node: crashes, lost answers,
// name nodes that die, freeze and fail over, and what other users of HDFS do
// meanwhile. It holds tests only.
package hdfs
