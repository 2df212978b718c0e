package postgres_test

import (
	"strings"
	"testing"

	"github.com/commitstep/engine/cli"
	"github.com/stretchr/testify/require"
)

// A row that cannot be read hides no others, and a list of which nothing can be
// read is not told as an empty one.
func TestUnreadableRowsHideNoOthers(t *testing.T) {
	t.Parallel()
	c, _, server := madeStores(t)
	c.env["COMMITSTEP_STORE"] = server
	c.set(server, "none", "7")
	_, s, _ := strings.Cut(server, "&schema=")
	do := func(sql string) { require.NoError(t, kit.Cluster(t).Exec(t.Context(), sql)) }
	do("UPDATE " + s + `.watermarks SET value = '{"value":8}'; UPDATE ` + s + ".audit SET record = set_byte(record, 30, 255 - get_byte(record, 30))")
	for _, list := range []string{"watermark", "audit"} {
		require.Empty(t, c.exits(cli.ExitStore, list, "list"), list)
		out := c.exits(cli.ExitStore, list, "list", "-o", "json")
		require.Contains(t, out, `"complete": false`)
		require.Contains(t, out, `"items": null`)
	}
	c.exits(cli.ExitOK, "watermark", "set", "--job", "k", "--source", "s", "--from", "none", "--to", "5", "--reason", "another job", "--yes")
	for list, says := range map[string]string{"watermark": `(?m)^k +s +5`, "audit": "another job"} {
		require.Regexp(t, says, c.exits(cli.ExitStore, list, "list"))
		require.Contains(t, c.exits(cli.ExitStore, list, "list", "-o", "json"), `"complete": false`)
	}
}
