// Package steptest is the kit that every kind of step runs, the engine's own
// and its users'. A kind that passes can be trusted with what the driver does
// to it: it looks at any time, repeats after crashes and lost answers, and runs
// late in a process that was frozen.
//
//	func TestKind(t *testing.T) {
//		t.Parallel()
//		steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
//			fake := newFake()
//			return steptest.World{
//				Spec:     mykind.Do("something"),
//				Kinds:    func() *commitstep.Registry { return commitstep.NewRegistry(mykind.Kind(fake)) },
//				Snapshot: fake.Dump,
//				Effects:  fake.Count,
//				Points:   fake.Points,
//				Foreign:  map[string]func() error{"another value": fake.Overwrite},
//			}
//		}})
//	}
//
// What is checked, each in fresh worlds: planning only reads and its result
// survives storage; Verify never writes and never mistakes a failed look for an
// answer; the effect takes place once however often and wherever the step is
// interrupted (error, lost answer, cancelled context, crash, before and after
// every point); a late Execute of an older epoch changes nothing; a look-alike
// is a conflict; unknown versions, unknown parameters and damaged evidence are
// refused without a panic.
//
// [Plan] and [Process] plan and run steps the way the driver does, for a kind's
// further tests. The kit knows no store, no driver and no kind.
package steptest
