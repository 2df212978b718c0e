// Package hivepublish publishes into Hive tables through one HiveServer2. It has
// four kinds:
//
//   - hive.insert_overwrite runs a given INSERT OVERWRITE at most once. It cannot
//     be taken back, and where nobody can know what became of it, the sequence is
//     parked as PUBLISH_UNKNOWN with an evidence pack.
//   - hive.swap_location points a partition at another directory.
//   - hive.add_partition adds a partition that lies in a directory of its own.
//   - hive.stage_and_swap takes the SELECT that an INSERT OVERWRITE would, writes
//     its rows into a directory that nobody reads, counts them there, and swaps
//     the partition's location. It is exactly once without ever needing a person.
//
// What counts as proof:
//
//	kind                   evidence                        Done                            NotDone                          Conflict            Unknown
//	hive.insert_overwrite  metrics before; later session,  the operation FINISHED and the  no mark of the point of no       FINISHED, metrics   everything else
//	                       handle and query id             plan's metrics hold             return; refused; ERROR before    differ
//	                                                                                       any MOVE task and the metrics
//	                                                                                       are the old ones
//	hive.swap_location     old location; the session of    the location is the plan's      the location is the old one,     another location    an ALTER without an
//	                       every ALTER                                                     no ALTER may still land                              answer whose session
//	hive.add_partition     the partition is absent         the location is the plan's      the partition is absent, …       another location    cannot be shown
//	hive.stage_and_swap    as hive.swap_location; every    the location is the directory   as hive.swap_location            another location,   closed
//	                       attempt's directory             of a verified attempt                                            metrics differ
//
// A location is proof because it carries a text that no other publish has. Hive's
// SQL state and error text are none: most runtime errors share one state, and the
// text says "while compiling" of statements that ran. Errors are sorted by the call
// in which they arrived and by the operation's state alone.
//
// The package needs a file system bound to the part of the warehouse that it
// publishes to: Hive swaps to a directory that is not there without a word, and
// only a file system can say what lies in it.
//
// For operators' tools: [Prober] gathers the evidence pack of a step again,
// [RollbackSpec] is the step that swaps a publish back, [Server.Sweep] removes the
// directories that no partition names any more.
//
// It must not know stores and drivers, and it speaks Thrift only through
// internal/hs2.
package hivepublish
