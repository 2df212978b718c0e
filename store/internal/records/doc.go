// Package records writes and reads the JSON that stores keep inside their sealed
// records: headers, steps, and the end of a history record. Thousands of them are
// put and completed in a second, so they are written without reflection, always in
// the same order of fields and without blanks in between, and what was written so
// is read by hand; encoding/json reads everything else, and tests hold that the two
// agree, with every field set.
//
// It must not know where a record is kept, nor what seals it.
package records
