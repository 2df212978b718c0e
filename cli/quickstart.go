package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/spf13/cobra"
)

func (in *invocation) quickstartCommand() *cobra.Command {
	var crash string
	c := &cobra.Command{
		Use:   "quickstart [DIR]",
		Short: "Make a small job with real data and publish it",
		Long: `Quickstart makes DIR (default ./` + quickstartDir + `) with a small Kafka-to-files
job: three staged Avro files of 100 records each, a plan that renames them to
their final names and moves two watermarks, and a commit store. Then it
publishes the plan and says what happened, step by step.

With --crash-at POINT the process kills itself at that point of the publish, as
a power cut would; the next ` + "`commitstep recover`" + ` finishes the work.
` + "`--crash-at list`" + ` prints the points.` + exitStatus(ExitDecision, ExitLocked, ExitPending, ExitStore, ExitInterrupted),
		Example: "  commitstep quickstart\n  commitstep quickstart --crash-at execute.after#1 demo",
		Args:    maybeArg,
	}
	c.Flags().StringVar(&crash, "crash-at", "", "kill this process at the `POINT`, or list the points")
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		if crash == "list" {
			return in.listPoints()
		}
		if in.location != "" {
			return usagef("quickstart makes a store of its own in its directory; leave --store out")
		}
		if point, _, _ := strings.Cut(crash, ":"); crash != "" && !slices.Contains(quickstartPoints(), point) {
			return usagef("%q is no point of this job; `%s quickstart --crash-at list` lists them", crash, in.Program)
		}
		dir := quickstartDir
		if len(args) > 0 {
			dir = args[0]
		}
		return in.quickstart(ctx, dir, crash)
	})
	return c
}

const (
	quickstartDir   = "commitstep-quickstart"
	quickstartPlan  = "plan.yaml"
	quickstartStore = "commit.db"
	// quickstartMark stands in DIR while it is being set up. Nothing can have
	// been published as long as it is there.
	quickstartMark = ".setting-up"
)

// listPoints prints the crash points, one a line.
func (in *invocation) listPoints() error {
	items := quickstartPoints()
	return in.print(document{kind: "CrashPointList", body: listOf(items), table: func(t *table) {
		for _, p := range items {
			t.line("%s", p)
		}
	}})
}

// quickstartPoints are the driver's named points that its job reaches, in an
// order in which they can be met. Steps of one stage run in parallel.
func quickstartPoints() []string {
	points := []string{"put.before", "put.after"}
	for _, p := range []string{"execute.before", "execute.after", "settle.after"} {
		for i := range quickstartFiles() {
			points = append(points, fmt.Sprintf("%s#%d", p, i))
		}
	}
	files := len(quickstartFiles())
	points = append(points, fmt.Sprintf("record.after#%d", files-1))
	for i := range quickstartMoves() {
		points = append(points, fmt.Sprintf("execute.before#%d", files+i))
	}
	return append(points, "complete.before", "complete.after", "cleanup.before", "cleanup.after", "cleaned.before", "cleaned.after")
}

func (in *invocation) quickstart(ctx context.Context, dir, crash string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return failf("give an absolute path", "%q: %v", dir, err)
	}
	if err := in.setUp(ctx, dir, abs); err != nil {
		return err
	}
	in.location = "bolt:" + filepath.Join(abs, quickstartStore)
	src := planSource{file: filepath.Join(abs, quickstartPlan)}
	kill := in.killPoint()
	if crash != "" {
		kill = crashAt(crash, func() {
			next := in.line("recover", "--job", quickstartJob)
			if crash == "put.before" {
				next = in.line("publish", "-f", src.file) // nothing is promised yet
			}
			in.say("killing this process at %s; finish its work with:\n  %s", crash, next)
			in.die()
		})
	}
	err = src.with(ctx, in, func(p *commitstep.Plan) error {
		return in.withStore(ctx, func(s *session) error { return in.publish(ctx, s, p, policyFlags{}, kill) })
	})
	if err != nil {
		return err
	}
	if in.format == "table" {
		in.tryNext(dir)
	}
	return nil
}

// line is a command to copy, with the store it is about.
func (in *invocation) line(words ...string) string {
	out := in.program()
	for _, w := range words {
		out += " " + shell.Quote(w)
	}
	return out + " --store " + shell.Quote(in.location)
}

func (in *invocation) tryNext(dir string) {
	plan := filepath.Join(filepath.Dir(strings.TrimPrefix(in.location, "bolt:")), quickstartPlan)
	fmt.Fprintf(in.Stdout, `
Try next:
  # how far each source was read, and which sequence said so
  %s
  # publish the same plan again: it is known, and nothing happens twice
  %s
  # a crash in the middle of a rename; it prints how to recover
  %s
`, in.line("watermark", "list", "--job", quickstartJob), in.line("publish", "-f", plan),
		in.program()+" quickstart --crash-at 'execute.after#1' "+shell.Quote(filepath.Clean(dir)+"-crash"))
}

// setUp makes the directory with staged files, plan and store. The mark file is
// there from the first to the last write, so that a crash in between is told
// from a finished set-up; making it also decides between two that start at
// once.
func (in *invocation) setUp(ctx context.Context, dir, abs string) error {
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return failf("name a directory that can be made", "quickstart: %v", err)
	}
	if err := in.checkFresh(dir, abs); err != nil {
		return err
	}
	mark := filepath.Join(abs, quickstartMark)
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return in.interruptedSetUp(dir)
	}
	if err != nil {
		return failf("name a directory that you may write to", "quickstart: %v", err)
	}
	err = errors.Join(f.Sync(), f.Close(), syncDir(abs), syncDir(filepath.Dir(abs)))
	if err == nil {
		err = in.fill(ctx, abs)
	}
	if err == nil {
		// The mark goes last, and durably: everything before it is complete.
		if err = os.Remove(mark); err == nil {
			err = syncDir(abs)
		}
	}
	if err != nil {
		return failf(fmt.Sprintf("nothing was published; start over with: rm -r %s", shell.Quote(dir)), "quickstart: setting %s up: %v", name(dir), err)
	}
	in.say("made %s with 3 Avro files of 100 records, %s and %s", name(dir), quickstartPlan, quickstartStore)
	return nil
}

// checkFresh refuses a directory that holds anything, and says how to go on
// with what is there.
func (in *invocation) checkFresh(dir, abs string) error {
	entries, err := os.ReadDir(abs)
	if err != nil {
		return failf("name another directory", "quickstart: %v", err)
	}
	has := func(want string) bool {
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == want })
	}
	startOver := fmt.Sprintf("start over with: rm -r %s && %s quickstart %s", shell.Quote(dir), in.program(), shell.Quote(dir))
	switch {
	case len(entries) == 0:
		return nil
	case has(quickstartMark):
		return in.interruptedSetUp(dir)
	case has(quickstartStore) && has(quickstartPlan):
		store := " --store " + shell.Quote("bolt:"+filepath.Join(abs, quickstartStore))
		return failf(fmt.Sprintf("go on with: %[1]s recover --job %[2]s%[3]s && %[1]s publish -f %[4]s%[3]s; or %[5]s",
			in.program(), quickstartJob, store, shell.Quote(filepath.Join(abs, quickstartPlan)), startOver),
			"a quickstart is already in %s", name(dir))
	}
	return failf("name a new directory", "%s is not empty and holds no quickstart", name(dir))
}

func (in *invocation) interruptedSetUp(dir string) error {
	return failf(fmt.Sprintf("unless one is running right now, start over with: rm -r %s && %s quickstart %s", shell.Quote(dir), in.program(), shell.Quote(dir)),
		"a quickstart in %s was interrupted while it was set up; nothing was published", name(dir))
}

// syncDir makes the entries of a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
