package pgstore_test

import (
	"testing"
	"time"

	"github.com/commitstep/engine/store/pgstore"
	"github.com/stretchr/testify/require"
)

// What cannot be meant is refused before anything is connected to.
func TestParametersThatCannotBe(t *testing.T) {
	t.Parallel()
	for bad, says := range map[string]string{
		"statement_timeout=1000000h":                    "2147483647 ms",
		"lock_timeout=2147483648ms":                     "2147483647 ms",
		"idle_in_transaction_session_timeout=25h60000m": "2147483647 ms",
		"lease=9999999h":                                "too long; the longest is 1h",
		"lease=100000h":                                 "lease is 100000h0m0s; give it at most 1h0m0s",
		"lease=3600001ms":                               "at most 1h0m0s",
		"statement_timeout=1ms":                         "statement_timeout is 1ms, in which the server gets nothing done; give it at least 100ms",
		"idle_in_transaction_session_timeout=99ms":      "at least 100ms",
		"give_up=99999999999h1m":                        "too long",
		"lease=9999999":                                 "no duration",
		"schema=a&schema=b":                             "names schema twice",
		"schema=a&lease=7s&schema=a":                    "names schema twice",
		"application_name=a&application_name=b":         "names application_name twice",
		"pool_max_conn=3":                               `"pool_max_conn", which there is not; there are `,
		"Schema=foo":                                    `"Schema", which there is not; there are `,
		"Lock_Timeout=5s":                               `"Lock_Timeout", which there is not; there are `,
	} {
		_, err := pgstore.Location("postgres://u@127.0.0.1:1/db?"+bad, nil)
		require.ErrorContains(t, err, says, bad)
		_, err = pgstore.Open(t.Context(), "postgres://u@127.0.0.1:1/db?"+bad, nil)
		require.ErrorContains(t, err, says, bad)
		require.NotErrorIs(t, err, pgstore.ErrUnreachable, bad)
	}
	for bad, says := range map[string]string{
		"schema=a host=h schema=b": "names schema twice",
		"host=h host=g":            "names host twice",
		"host=h pool_max_conn=3":   `"pool_max_conn"`,
		"host=h Schema=foo":        `"Schema"`,
	} {
		_, err := pgstore.Location(bad, nil)
		require.ErrorContains(t, err, says, bad)
	}
	_, err := pgstore.Open(t.Context(), "postgres://u@127.0.0.1:1/db", &pgstore.Options{StatementTimeout: 1000 * time.Hour})
	require.ErrorContains(t, err, "statement_timeout is 1000h0m0s; PostgreSQL takes at most 2147483647 ms")
	_, err = pgstore.Open(t.Context(), "postgres://u@127.0.0.1:1/db", &pgstore.Options{LeaseTTL: 2 * time.Hour})
	require.ErrorContains(t, err, "lease is 2h0m0s; give it at most 1h0m0s")
	for _, good := range []string{"lease=1h", "statement_timeout=100ms&lock_timeout=5ms", "statement_timeout=2147483647ms&lock_timeout=596h", "give_up=100000h", "work_mem=5MB&TimeZone=UTC", "pool_max_conns=3&pool_ping_timeout=1s"} {
		_, err := pgstore.Location("postgres://u@127.0.0.1:1/db?"+good, nil)
		require.NoError(t, err, good)
	}
}

// What only the server knows to be no setting is one clear error too, whoever
// connects.
func TestAParameterThatTheServerDoesNotKnow(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	for _, name := range []string{"leese", "search_paths"} {
		_, err := pgstore.Open(t.Context(), s.dsn+"&"+name+"=1", nil)
		require.ErrorContains(t, err, `pgstore: the address names a parameter "`+name+`", which there is not; there are `)
		require.NotContains(t, err.Error(), "tls error")
		require.NotContains(t, err.Error(), "\n")
		_, err = pgstore.NewMigrator(t.Context(), s.dsn+"&"+name+"=1", nil)
		require.ErrorContains(t, err, `pgstore: the address names a parameter "`+name+`"`)
	}
	pooled := newSite(t, true)
	_, err := pgstore.Open(t.Context(), pooled.dsn+"&leese=1", nil)
	require.ErrorContains(t, err, `pgstore: the address names a parameter "leese", which there is not`)
	st := open(t, s.dsn+"&work_mem=5MB", nil)
	require.NoError(t, st.Close())
}
