package cli

import "github.com/spf13/cobra"

// helpCommand is cobra's, but a topic that does not exist is a wrong call.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command or topic",
		Long:  "Help prints the help of a command or a topic.",
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				word := args[0]
				if err == nil {
					word = rest[0]
				} else {
					found = c.Root()
				}
				return unknownCommand(found, word)
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}
