//go:build linux

package local

// Options that make the machine's file system look like a poorer one.

// WithoutNoReplace is a file system that knows no RENAME_NOREPLACE.
func WithoutNoReplace() Option { return func(f *Files) { f.noRenameat2 = true } }

// WithoutLinks is a file system that knows no hard links.
func WithoutLinks() Option { return func(f *Files) { f.noLink = true } }

// WithoutOpenat2 is a kernel before 5.6.
func WithoutOpenat2() Option { return func(f *Files) { f.noOpenat2 = true } }

// WithoutHandles is a file system that has birth times only.
func WithoutHandles() Option { return func(f *Files) { f.noHandles = true } }

// WithoutIDs is a file system whose inode numbers are made up.
func WithoutIDs() Option { return func(f *Files) { f.noIDs = true } }

// PrivatePrefix starts the names of private directories.
const PrivatePrefix = privatePrefix

// WithFullDisk is a disk on which no directory can be made.
func WithFullDisk() Option { return func(f *Files) { f.fullDisk = true } }
