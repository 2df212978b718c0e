// Package powercut computes the states in which a power cut may leave a file
// tree, from a recording of the system calls that changed it. It is for tests.
//
// Killing a process keeps the page cache, so it never shows a missing fsync.
// Here a real run is recorded with strace, and every state that a file system
// may legally show after the power failed at any moment of it is made:
//
//   - a write that was not synced is there, is not, or (above one sector of 512
//     bytes) is there in part;
//   - a new, removed or changed directory entry is there or not until its
//     directory is synced; an fsync of a file makes its content durable, not
//     its name;
//   - a rename is one unit: the old name, the new one, or both (a directory
//     never has both), never neither. A sync of one of the two parents settles
//     that half;
//   - a sync covers what had ended before it began, nothing else, and counts
//     from the moment it ends.
//
// Real file systems promise more than that, each something else; what survives
// here survives on all of them. The package knows no store, plan or driver:
// the test that uses it recovers from every state and judges the result.
//
//	args := powercut.Strace(out)                   // run the child under it
//	rec, err := powercut.Parse(out, root, initial) // initial := powercut.Scan(root), before the run
//	for state := range rec.States(...) { state.WriteTo(root); ... }
package powercut
