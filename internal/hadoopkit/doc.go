// Package hadoopkit runs a real Hadoop for tests and benchmarks: a name node
// and a data node (and on demand a second name node, or YARN with MapReduce, see
// [StartYARN]), each a process of its own on free ports with directories of its
// own, so that a test can kill, freeze, restart and fail over what production
// kills and fails over.
//
// The jars are fetched once by `make hadoop` and kept outside the checkout.
// Where they or Java are absent, [Shared] and [Private] skip the test with a
// line that says how to get them.
//
//	func TestMain(m *testing.M) {
//		goleak.VerifyTestMain(hadoopkit.Main(m))
//	}
//
//	func TestRename(t *testing.T) {
//		t.Parallel()
//		c := hadoopkit.Shared(t)
//		... c.RPC(), c.WebHDFS() ...
//	}
//
// A shared cluster is the one that [DirEnv] names, else one that `make hadoop`
// left running, else one that this process starts and [Main] stops. Processes
// that a test started end with the test process, also when that is killed.
// The package is for tests only and knows nothing of the engine.
package hadoopkit
