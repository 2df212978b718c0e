// Package hdfs is a file system on HDFS through the name node's RPC protocol,
// for the file steps of the engine.
//
// It is built on github.com/colinmarc/hdfs, which was not made for calls that
// must not happen twice. What that library leaves open is closed in the
// connection that it is given (see conn in this package):
//
//   - Every call has a deadline and ends with its context. A client that saw
//     anything but an answer of the name node is thrown away: it would give
//     the answers of old calls to new ones.
//   - Whether a call was sent is known from the bytes, not guessed from error
//     texts; the exception class that the server sent is kept.
//   - Rename clears the overwrite flag, which the library always sets. A
//     rename whose flag cannot be cleared is not sent.
//
// A client runs one call at a time, so there is a bounded pool of them.
//
// The package must not know plans, stores or drivers.
package hdfs
