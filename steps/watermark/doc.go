// Package watermark is the step "watermark.set": it says how far a source was
// read, once the data read from it is published.
//
// A watermark moves by compare-and-set only. The plan names the position the
// job read before it opened its source (from) and the one that is true
// afterwards (to); whatever else is stored is a conflict, also when it lies
// further ahead. So neither a replay of an old plan nor a second driver can
// turn a position back or skip over data.
//
// The position is kept in the commit store, where the move, its done mark and
// the end of the sequence are one transaction, or in a [Target] of the user's
// choice, such as a directory of files ([Files]).
//
// The package knows no store implementation and no driver: a commit store is a
// [Reader] here, and applies the move itself.
package watermark
