// Package webhdfs is a file system on HDFS through the name node's web server,
// for the file steps of the engine: where the RPC port is closed, where TLS is
// wanted, and where a rename that never overwrites must not rest on reading a
// protocol along (see filesys/hdfs).
//
// It needs no library for HDFS. Every request has a deadline; one that changes
// something is sent once, whatever becomes of it. Redirects are followed only
// from a name node to a data node, for content.
//
// The package must not know plans, stores or drivers.
package webhdfs
