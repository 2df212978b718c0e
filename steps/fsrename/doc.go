// Package fsrename is the step that publishes a staged file or directory by
// renaming it: kind "fs.rename".
//
// What was staged is recorded by identity when the plan is made, so that "is
// it published?" never means "is there something of that name?". The rename
// never overwrites. Directories that are missing above the destination are
// made when the step runs, in a replay too.
//
// The package must not know stores, drivers or one particular file system: it
// works on any [filesys.FS].
package fsrename
