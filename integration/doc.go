// Package integration holds the tests of the whole engine: real child
// processes that die at every point of a publish, the states that a power cut
// can leave, and the faults that users of comparable systems reported. It has
// no code of its own.
package integration
