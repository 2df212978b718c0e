// Package fsremove is the cleanup step that clears a staging directory once its
// sequence completed: kind "fs.remove".
//
// It removes what was recorded when the plan was made and is still exactly
// that, file by file, then the recorded directories that are empty; never
// whatever lies at a path. A process that was frozen before its cleanup and
// thaws when the next run has staged new files under the same names removes
// none of them. What stays is reported and is no failure.
//
// The package must not know stores, drivers or one particular file system.
package fsremove
