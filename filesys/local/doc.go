// Package local is the machine's own file system as a [filesys.FS]: identity
// that survives a rename, a rename that never overwrites, a removal that never
// takes another's file, and directories whose entries are durable.
//
// Everything happens below one root directory that is held open. Paths are
// walked without following links; a link inside the root is resolved first and
// the result is walked again, so neither a link nor ".." leads out of the root,
// also while somebody is changing links at the same time.
//
// Addresses hold absolute paths of the operating system, not paths relative to
// the root, so that another process with another root (a command line with
// "/") finds the same files.
//
// The package must not know plans, stores or drivers. It runs on Linux; on
// other systems it compiles and [New] refuses.
package local
