package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// App is the command line with everything it touches, so that tests can stand
// in for the terminal and the clock. A zero field means the process's own. One
// App may run many commands, one after the other.
type App struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Env looks up an environment variable; "" when it is not set.
	Env func(string) string
	// Now is the time that ages are told from.
	Now func() time.Time
	// Terminal says that a person sits there: questions may be asked on Stderr
	// and are answered on Stdin. Nil finds out by looking at both.
	Terminal func() bool
	// Program is how the user calls this program; for lines to be copied.
	Program string
	// Kinds of the program's own, besides fs.rename, fs.remove, watermark.set and
	// those of Hive. One that has such a name replaces it.
	Kinds []commitstep.Kind

	die func() // ends the process at a crash point; nil is SIGKILL
}

// Run is a whole main: it runs the command that args name (without the
// program's own name), with kinds besides the built-in ones, on the process's
// own input, output and environment, and returns the exit code. SIGINT and
// SIGTERM end it in good order; a second one ends it at once.
func Run(ctx context.Context, args []string, kinds ...commitstep.Kind) int {
	return (&App{Kinds: kinds}).Run(ctx, args)
}

// Run runs one command and returns its exit code; see the package function.
func (a *App) Run(ctx context.Context, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on the next one has its usual, deadly effect.
	context.AfterFunc(ctx, stop)

	in := a.invocation()
	root := in.root()
	root.SetHelpCommand(helpCommand())
	root.SetArgs(args)
	root.SetIn(in.Stdin)
	root.SetOut(in.Stdout)
	root.SetErr(in.Stderr)
	in.preview(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	out := outcomeOf(err)
	if ctx.Err() != nil {
		out.interrupted = true
	}
	return in.fail(err, out)
}

// invocation is one run of one command.
type invocation struct {
	App
	location string   // --store
	used     string   // the store that the command is about, for hints; "" before it is known
	config   string   // --config
	targets  []string // --watermark-target
	format   string   // --output
	quiet    bool
	noInput  bool
	// unusable is what openResources found configured and could not open, unnamed what
	// Hadoop's files leave out.
	unusable, unnamed []unusable
}

func (a *App) invocation() *invocation {
	in := &invocation{App: *a, format: "table"}
	if in.Stdin == nil {
		in.Stdin = os.Stdin
	}
	if in.Stdout == nil {
		in.Stdout = os.Stdout
	}
	if in.Stderr == nil {
		in.Stderr = os.Stderr
	}
	if in.Env == nil {
		in.Env = os.Getenv
	}
	if in.Now == nil {
		in.Now = time.Now
	}
	if in.Program == "" {
		in.Program = calledAs(os.Args, mainPackage())
	}
	if in.Terminal == nil {
		in.Terminal = func() bool { return isTerminal(in.Stdin) && isTerminal(in.Stderr) }
	}
	if in.die == nil {
		in.die = killSelf
	}
	return in
}

const goRun = "go run "

// calledAs is what a shell of the user's finds this program by: a word, or
// `go run` and the package.
func calledAs(args []string, pkg string) string {
	if len(args) == 0 || args[0] == "" {
		return "commitstep"
	}
	if !strings.ContainsRune(args[0], filepath.Separator) {
		return filepath.Base(args[0])
	}
	// What `go run` has built is deleted when it ends.
	if pkg != "" && slices.ContainsFunc(strings.Split(args[0], string(filepath.Separator)), func(s string) bool { return strings.HasPrefix(s, "go-build") }) {
		return goRun + pkg
	}
	return args[0]
}

// mainPackage is the program's package as `go run` in its module takes it, ""
// when that is not known.
func mainPackage() string {
	bi, ok := debug.ReadBuildInfo()
	if !ok || bi.Main.Path == "" {
		return ""
	}
	if bi.Path == bi.Main.Path {
		return "."
	}
	rest, ok := strings.CutPrefix(bi.Path, bi.Main.Path+"/")
	if !ok {
		return ""
	}
	return "./" + rest
}

// program is how a line to be copied begins.
func (in *invocation) program() string {
	if strings.HasPrefix(in.Program, goRun) {
		return in.Program
	}
	return shell.Quote(in.Program)
}

// called replaces the usual name in hints that other packages word.
func (in *invocation) called(text string) string {
	if in.Program == "commitstep" {
		return text
	}
	return strings.ReplaceAll(text, "`commitstep ", "`"+in.program()+" ")
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// preview looks for the output format before the flags are parsed, so that a
// usage error is JSON too when JSON was asked for.
func (in *invocation) preview(args []string) {
	for i, arg := range args {
		v := ""
		switch {
		case arg == "--":
			return
		case (arg == "-o" || arg == "--output") && i+1 < len(args):
			v = args[i+1]
		case strings.HasPrefix(arg, "--output="):
			v = strings.TrimPrefix(arg, "--output=")
		case strings.HasPrefix(arg, "-o") && len(arg) > 2:
			v = strings.TrimPrefix(strings.TrimPrefix(arg, "-o"), "=")
		}
		if _, ok := printers()[v]; ok {
			in.format = v
		}
	}
}

// print writes a document to stdout.
func (in *invocation) print(d document) error {
	if err := printers()[in.format].print(in.Stdout, d); err != nil {
		return failf("what the command did stands; ask for it again with a list or show command", "writing the result: %v", err)
	}
	return nil
}

// say talks to the person on stderr: plainly, or as a JSON line when the
// command prints for programs, so that stderr can be parsed as well.
func (in *invocation) say(format string, a ...any) {
	if in.quiet {
		return
	}
	in.talk("Notice", struct {
		Message string `json:"message"`
	}{oneLine(fmt.Sprintf(format, a...))}, fmt.Sprintf(format, a...))
}

// talk writes one line to stderr. That stderr is gone is no reason to stop.
func (in *invocation) talk(kind string, body any, text string) {
	if in.format != "json" {
		fmt.Fprintln(in.Stderr, text)
		return
	}
	b, err := document{kind: kind, body: body}.marshal()
	if err != nil {
		b = []byte(oneLine(text))
	}
	_, _ = in.Stderr.Write(append(bytes.TrimSpace(b), '\n'))
}

// fail tells an error and returns the exit code.
func (in *invocation) fail(err error, out outcome) int {
	code := out.code()
	// Joined errors come on lines of their own.
	msg, hint := oneLine(strings.ReplaceAll(err.Error(), "\n", "; ")), oneLine(hintOf(err))
	if errors.Is(err, context.Canceled) && msg == context.Canceled.Error() {
		msg = "interrupted"
	}
	msg, hint = in.called(msg), in.called(hint)
	if !out.usage {
		msg, hint = in.onUsedStore(msg), in.onUsedStore(hint)
	}
	text := "commitstep: " + msg
	if hint != "" {
		text += "; " + hint
	}
	in.talk("Error", errorBody{Code: code, Name: exitName(code), Message: msg, Hint: hint}, text)
	return code
}

// command wraps the running function of a cobra command: a command gets its
// context and its positional arguments.
func (in *invocation) run(fn func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		if _, ok := printers()[in.format]; !ok {
			return usagef("the output format %q is unknown; there are %s", in.format, formatNames)
		}
		if err := in.checkCrash(); err != nil {
			return err
		}
		return fn(c.Context(), args)
	}
}
