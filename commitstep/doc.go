// Package commitstep is the vocabulary of the engine: plans, steps, sequences,
// verdicts, error classes, the registry of step kinds and the record codec.
//
// Everything that publishes data exactly once is expressed with these words:
// a caller describes a [Plan]; the driver resolves it into a sequence of
// [Step] values, each with the evidence that tells its own effect from a
// look-alike; a store keeps the sequence; a [Kind] turns a stored step back
// into a [CommitStep] that can Verify and Execute.
//
// The package does no I/O, knows no store, no file system and no step
// behaviour, and imports nothing but the standard library and a UUID package.
// All values are plain data; unless a comment says otherwise they are not safe
// for concurrent mutation.
package commitstep
