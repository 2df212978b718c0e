// Package hivekit runs a real HiveServer2 with its metastore for tests and
// benchmarks: one process that holds both, with a database of its own on the
// local disk and its warehouse on the HDFS of package hadoopkit, so that a test
// can kill, freeze and restart what production kills and freezes.
//
// The jars are fetched once by `make hive` and kept outside the checkout. Where
// they or Java are absent, [Shared], [Victim] and [Private] skip the test with
// a line that says how to get them.
//
//	func TestMain(m *testing.M) {
//		goleak.VerifyTestMain(hivekit.Main(m))
//	}
//
//	func TestPublish(t *testing.T) {
//		t.Parallel()
//		s := hivekit.Shared(t)
//		... s.Address(), s.WebUI(), s.Hadoop.RPC() ...
//	}
//
// A start takes ten seconds and more, and the first statement of a session a
// few more: tests use the shared server and keep their sessions. It is the one
// that [DirEnv] names, else one that `make hive` left running, else one that
// this process starts and [Main] stops. Tests that kill take turns on another
// one, [Victim]. Processes that a test started end with the test process, also
// when that is killed. The package is for tests only and knows nothing of the
// engine.
package hivekit
