// Package cli is the commitstep command line: what operators type, and what
// jobs in any language call at their start (recover) and end (publish). It is
// exported so that a program with step kinds of its own gets the same
// commands: [Run] with those kinds is a whole main.
//
// The package turns flags into calls of driver and store, and their answers
// into tables, JSON and exit codes. It decides nothing about sequences itself:
// no rule of what may be run, retried or resolved lives here, and nothing else
// in the module may import it.
//
// Data goes to stdout, talk to stderr. The JSON that -o json prints is a
// contract: it carries apiVersion and kind, and only ever gains fields.
package cli
