package cli

import (
	"context"
	"runtime"

	"github.com/commitstep/engine/commitstep"
	"github.com/spf13/cobra"
)

func (in *invocation) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the Go version and the store format",
		Long:    "Print the version of this program, the Go version it was built with and the\nnewest store format that it reads and writes." + exitStatus(),
		Example: "  commitstep version -o json",
		Args:    noArgs,
		RunE: in.run(func(context.Context, []string) error {
			body := struct {
				Version     string `json:"version"`
				Go          string `json:"go"`
				Platform    string `json:"platform"`
				StoreFormat int    `json:"storeFormat"`
			}{moduleVersion(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, commitstep.FormatVersion}
			return in.print(document{kind: "Version", body: body, table: func(t *table) {
				t.line("commitstep %s, %s %s, store format %d", body.Version, body.Go, body.Platform, body.StoreFormat)
			}})
		}),
	}
}
