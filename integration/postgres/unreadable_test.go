package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
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

// What is live and cannot be read is shown as that where it can be set aside, and
// is told as an error where it cannot, as on a standby. Either way it hides no
// others.
func TestUnreadableSequencesHideNoOthers(t *testing.T) {
	t.Parallel()
	c, _, server := madeStores(t)
	ctx := t.Context()
	st, err := pgstore.Open(ctx, server, nil)
	require.NoError(t, err)
	me := commitstep.Instance{ID: uuid.New(), Name: "me"}
	_, err = st.Join(ctx, me)
	require.NoError(t, err)
	ids := map[string]uuid.UUID{}
	for _, dataset := range []string{"header", "second", "steps", "third"} {
		id := uuid.Must(uuid.NewV7())
		_, err = st.Put(ctx, store.Draft{ID: id, Key: commitstep.Key{Job: "j", Dataset: dataset},
			Pages: func(yield func([]commitstep.Step, error) bool) {
				yield([]commitstep.Step{{Kind: "test.noop", Version: 1, Params: []byte("{}")}}, nil)
			},
			Header: func() (commitstep.Header, error) {
				return commitstep.Header{ID: id, Key: commitstep.Key{Job: "j", Dataset: dataset}, PlanHash: dataset, Created: time.Now(), Steps: 1, Stages: 1, FirstWatermark: -1}, nil
			}}, me.ID)
		require.NoError(t, err)
		ids[dataset] = id
	}
	require.NoError(t, st.Leave(ctx, me.ID))
	require.NoError(t, st.Close())
	_, s, _ := strings.Cut(server, "&schema=")
	reader := kit.Name()
	hurt := func(column, dataset string) string {
		return "UPDATE " + s + ".documents SET " + column + " = set_byte(" + column + ", 30, 255 - get_byte(" + column + ", 30)) WHERE id = '" + ids[dataset].String() + "';"
	}
	require.NoError(t, kit.Cluster(t).Exec(ctx, hurt("header", "header")+hurt("steps", "steps")+
		"CREATE ROLE "+reader+" LOGIN; GRANT USAGE ON SCHEMA "+s+" TO "+reader+"; GRANT SELECT ON ALL TABLES IN SCHEMA "+s+" TO "+reader))
	t.Cleanup(func() {
		_ = kit.Cluster(t).Exec(context.Background(), "DROP OWNED BY "+reader+"; DROP ROLE "+reader)
	})

	c.env["COMMITSTEP_STORE"] = strings.Replace(server, "//pg@", "//"+reader+"@", 1)
	for _, list := range [][]string{{"pending", "list"}, {"pending", "list", "--exit-status"}} {
		out := c.exits(cli.ExitStore, list...)
		require.Regexp(t, `(?m)^j +second .* pending`, out)
		require.Regexp(t, `(?m)^j +third .* pending`, out)
		require.Regexp(t, `(?m)^j +steps .* pending`, out, "its header can be read")
		require.NotRegexp(t, `(?m)^j +header`, out)
		require.Contains(t, c.err.String(), `dataset "j"/"header": checksum`)
		require.Contains(t, c.err.String(), `of dataset "j"/"steps": checksum`)
	}
	out := c.exits(cli.ExitStore, "pending", "list", "-o", "json")
	require.Contains(t, out, `"complete": false`)
	require.Contains(t, out, `"dataset": "third"`)

	c.env["COMMITSTEP_STORE"] = server
	for range 2 {
		out = c.exits(cli.ExitOK, "pending", "list")
		require.Regexp(t, `(?m)^j +second .* pending`, out)
		require.Regexp(t, `(?m)^j +third .* pending`, out)
		for _, dataset := range []string{"header", "steps"} {
			require.Regexp(t, `(?m)^j +`+dataset+` .* parked UNREADABLE .*documents/`+ids[dataset].String()+`: .*checksum`, out)
			require.Equal(t, 1, strings.Count(out, "j    "+dataset+" "), "once")
		}
		require.Contains(t, c.err.String(), "quarantine list")
	}
	require.Contains(t, c.exits(cli.ExitOK, "pending", "list", "-o", "json"), `"complete": true`)
}
