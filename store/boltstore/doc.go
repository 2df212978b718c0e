// Package boltstore keeps sequences in one local file (bbolt), for one process
// at a time: the default commit store, without a server to run.
//
// [Init] makes a store, [Open] opens one; neither ever does the other's work,
// so that a wrong path cannot turn into an empty ledger. The file is locked
// while it is open, verified page by page before it is used, and every write
// is durable when it returns: writes of many goroutines share one commit.
//
// What went wrong, and what errors.Is finds in the error of Open or Init:
//
//	no file at the path                     ErrAbsent
//	a file of 0 bytes                       ErrEmpty
//	a file that is no commit store          ErrNotStore
//	a directory, device or socket           ErrNotFile
//	another process has it open             ErrLocked
//	no right to read or write it            fs.ErrPermission
//	written by a newer version              commitstep.ErrNewerFormat
//	cut, overwritten or otherwise damaged   commitstep.ErrDamaged
//	Init: something is there already        fs.ErrExist
//
// docs/formats.md describes the file. The package knows no step kind and no
// driver policy; it keeps what it is told, in order, and refuses writes that
// are not the caller's to make.
package boltstore
