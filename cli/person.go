package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"runtime/debug"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/commitstep/engine/store"
	"github.com/spf13/pflag"
)

// decision holds the flags of every command by which a person decides.
type decision struct {
	reason string
	by     string
	yes    bool
}

func (d *decision) addFlags(f *pflag.FlagSet, yes bool) {
	f.StringVar(&d.reason, "reason", "", "why, at least 5 characters; kept in the audit (required)")
	f.StringVar(&d.by, "by", "", "who decides (COMMITSTEP_BY; default: the login name)")
	if yes {
		f.BoolVar(&d.yes, "yes", false, "do it without asking")
	}
}

// person is who decides, for the audit. Missing parts are usage errors.
func (in *invocation) person(d decision) (store.Person, error) {
	p := store.Person{Name: strings.TrimSpace(d.by), Reason: strings.TrimSpace(d.reason), Tool: "commitstep " + moduleVersion()}
	if utf8.RuneCountInString(p.Reason) < store.MinReason {
		return p, usagef("this is audited: give --reason with at least %d characters", store.MinReason)
	}
	if p.Name == "" {
		p.Name = strings.TrimSpace(in.Env("COMMITSTEP_BY"))
	}
	if p.Name == "" {
		if u, err := user.Current(); err == nil {
			p.Name = u.Username
		} else {
			p.Name = "uid " + strconv.Itoa(os.Getuid())
		}
	}
	if !utf8.ValidString(p.Name) || !utf8.ValidString(p.Reason) {
		return p, usagef("--by and --reason must be valid UTF-8")
	}
	// Without a host name the entry still has its person.
	p.Host, _ = os.Hostname()
	return p, nil
}

// asks reports whether questions may be asked.
func (in *invocation) asks() bool { return !in.noInput && in.Terminal() }

// confirm lets a person type word before something that cannot be undone. With
// --yes it does not ask; without a terminal it never guesses.
func (in *invocation) confirm(ctx context.Context, d decision, what, word string) error {
	if d.yes {
		return nil
	}
	if !in.asks() {
		return usagef("there is no terminal to ask on; add --yes to %s", what)
	}
	fmt.Fprintf(in.Stderr, "To %s, type %s: ", what, name(word))
	type answer struct {
		text string
		err  error
	}
	got := make(chan answer, 1)
	// A read of a terminal cannot be cancelled; after a signal the process
	// ends, and this goroutine with it.
	go func() {
		text, err := bufio.NewReader(io.LimitReader(in.Stdin, 64<<10)).ReadString('\n')
		got <- answer{text, err}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(in.Stderr)
		return fmt.Errorf("nothing was done: %w", ctx.Err())
	case a := <-got:
		if a.err != nil && !errors.Is(a.err, io.EOF) {
			return fmt.Errorf("read the answer: %w", a.err)
		}
		text := strings.TrimRight(a.text, "\r\n")
		if text != word && text != name(word) {
			return failf(fmt.Sprintf("type %s to go on", name(word)), "nothing was done: the answer was %q", text)
		}
		return nil
	}
}

// moduleVersion is the version this program was built from.
func moduleVersion() string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	const module = "github.com/commitstep/engine"
	if bi.Main.Path == module && bi.Main.Version != "" {
		return bi.Main.Version
	}
	for _, d := range bi.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return "(devel)"
}
