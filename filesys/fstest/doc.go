// Package fstest proves that a file system keeps the contract of
// [filesys.FS]. Every implementation runs [Exercise], those of others too.
//
// [Hooked] puts a hook around every call of a file system, for tests that lose
// answers or stop a process in between.
package fstest
