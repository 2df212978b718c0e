// Package dfs is what HDFS looks like through every transport: the rules of
// its names and identities, the sorting of its errors, waiting for a name node
// that serves, removal that never removes another file. filesys/hdfs and
// filesys/webhdfs each add a [Transport]; [Files] makes a file system of it.
//
// It must not know plans, stores or drivers, nor one particular transport.
package dfs
