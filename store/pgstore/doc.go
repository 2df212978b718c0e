// Package pgstore keeps sequences in PostgreSQL, for many drivers on many
// machines: leases on the database's clock, epochs with every claim, and group
// commit over few connections.
//
// [Migrate] makes or changes the tables, under a migration role and a lock;
// [Open] never does, and refuses a schema of another version. What can go wrong
// and what errors.Is finds:
//
//	no such tables, or another version   ErrSchema
//	the server cannot be reached         ErrUnreachable
//	a write whose answer was lost, and   commitstep.ErrOutcomeUnknown
//	which could not be read again
//
// A write that was handed over is finished whatever its context says. When the
// connection breaks it is sent again on another one: every write is harmless
// when it runs twice, so the second run tells what became of the first. Only
// when the server stays away for Options.GiveUp does the caller hear that the
// outcome is unknown.
//
// docs/postgres.md describes schema, roles, views and poolers. The package
// knows no step kind and no driver policy.
package pgstore
