package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// root builds the tree of commands. Each command has a file of its own.
func (in *invocation) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "commitstep",
		Short: "Publish data exactly once, with a write-ahead list of steps",
		Long: `commitstep writes the whole list of steps of a publish down before the first of
them has a visible effect. After a crash it asks of every step "is this already
done?", does again only what is not, and stops a single dataset to ask a person
where nobody can know.

A job calls ` + "`commitstep recover --job J`" + ` at its start and ` + "`commitstep publish -f PLAN`" + `
at its end. ` + "`commitstep quickstart`" + ` shows both.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	f := root.PersistentFlags()
	f.StringVar(&in.location, "store", "", "the commit store, `bolt:PATH` or postgres://… (COMMITSTEP_STORE)")
	f.StringVar(&in.config, "config", "", "the configuration `FILE` with the file systems that plans name (COMMITSTEP_CONFIG)")
	f.StringArrayVar(&in.targets, "watermark-target", nil, "bind the watermark target `NAME=DIR` that plans name; may be repeated (COMMITSTEP_WATERMARK_TARGETS)")
	f.StringVarP(&in.format, "output", "o", in.format, "how to print: "+formatNames)
	f.BoolVarP(&in.quiet, "quiet", "q", false, "say nothing on stderr but errors")
	f.BoolVar(&in.noInput, "no-input", false, "never ask, as if there were no terminal")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%v; see `%s --help`", err, c.CommandPath())
	})
	root.AddCommand(
		in.publishCommand(),
		in.recoverCommand(),
		in.pendingCommand(),
		in.resolveCommand(),
		in.quarantineCommand(),
		in.historyCommand(),
		in.auditCommand(),
		in.watermarkCommand(),
		in.planCommand(),
		in.stagingCommand(),
		in.storeCommand(),
		in.hiveCommand(),
		in.fsCommand(),
		in.doctorCommand(),
		in.quickstartCommand(),
		in.versionCommand(),
		exitCodesTopic(),
		environmentTopic(),
		resourcesTopic(),
	)
	// With an own function for unknown words cobra leaves the sentence to us.
	root.Args = cobra.ArbitraryArgs
	root.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(c, args[0])
		}
		return c.Help()
	}
	return root
}

// group is a command that only has subcommands.
func group(use, short, long string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.ArbitraryArgs}
	c.AddCommand(children...)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(c, args[0])
		}
		var names []string
		for _, s := range c.Commands() {
			names = append(names, s.Name())
		}
		return usagef("`%s` needs a subcommand: %s", c.CommandPath(), strings.Join(names, ", "))
	}
	return c
}

func unknownCommand(c *cobra.Command, word string) error {
	c.SuggestionsMinimumDistance = 2
	s := c.SuggestionsFor(word)
	if len(s) == 0 {
		return usagef("%q is no command of `%s`; see `%s --help`", word, c.CommandPath(), c.CommandPath())
	}
	return usagef("%q is no command of `%s`; did you mean %s?", word, c.CommandPath(), strings.Join(s, " or "))
}

// noArgs refuses positional arguments in one line.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("`%s` takes no argument, but got %q; see `%s --help`", c.CommandPath(), args[0], c.CommandPath())
	}
	return nil
}

// oneArg demands exactly one positional argument.
func oneArg(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usagef("`%s` needs %s; see `%s --help`", c.CommandPath(), what, c.CommandPath())
		case 1:
			return nil
		}
		return usagef("`%s` takes one argument, but got %d (a name with blanks needs quotes)", c.CommandPath(), len(args))
	}
}

// maybeArg allows one positional argument.
func maybeArg(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("`%s` takes at most one argument, but got %d (a name with blanks needs quotes)", c.CommandPath(), len(args))
	}
	return nil
}

func exitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("Exit codes are the same for every command:\n\n")
	for _, e := range exitTexts() {
		fmt.Fprintf(&b, "  %-4d%s\n", e.code, e.text)
	}
	b.WriteString(`
Where several hold, the first of 9, 5, 4, 3, 8 is returned. A code that is not
listed is a failure. With -o json the error on stderr carries the code too.`)
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: b.String()}
}

func environmentTopic() *cobra.Command {
	return &cobra.Command{Use: "environment", Short: "Environment variables that are read", Long: `A flag wins over its variable, a variable over the default.

  COMMITSTEP_STORE   the commit store, as in --store
  PGHOST, PGPASSWORD, PGSERVICE and the other variables of libpq
                     what a postgres location leaves out
  COMMITSTEP_CONFIG  the configuration file, as in --config; default:
                     $XDG_CONFIG_HOME/commitstep/config.yaml, or below $HOME/.config
  COMMITSTEP_WATERMARK_TARGETS
                     as in --watermark-target, NAME=DIR:NAME=DIR
  HADOOP_CONF_DIR    Hadoop's configuration files: plans may name their name services
  COMMITSTEP_BY      who decides, as in --by; default: the user's login name
  XDG_STATE_HOME     the default store is bolt:$XDG_STATE_HOME/commitstep/commit.db
  HOME               without XDG_STATE_HOME: bolt:$HOME/.local/state/commitstep/commit.db`}
}
