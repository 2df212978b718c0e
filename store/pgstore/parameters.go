package pgstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// parameters are the names that an address may use beside ownSettings and schema.
// Every other name is a setting of the server, and only the server knows those.
func parameters() []string {
	return []string{
		"host", "port", "user", "password", "dbname", "passfile", "service", "servicefile", "connect_timeout", "target_session_attrs",
		"sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslsni", "sslnegotiation", "channel_binding", "require_auth",
		"pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter", "pool_max_conn_idle_time",
		"pool_health_check_period", "pool_ping_timeout", "default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
		"application_name", "options",
	}
}

// isMisspelt reports that the name of a setting for the server is none for sure:
// it is one of ours but for its case, or speaks of the pool. The others the server
// has to judge.
func isMisspelt(name string) bool {
	low := strings.ToLower(name)
	return strings.HasPrefix(low, "pool_") || low != name && (isOwn(low) || slices.Contains(parameters(), low))
}

// unknownParameter says which names there are.
func unknownParameter(name string) error {
	own := append(slices.Sorted(maps.Keys(ownSettings)), "schema")
	return fmt.Errorf("pgstore: the address names a parameter %q, which there is not; there are %s, those of the connection: %s, and the settings of the server, such as work_mem",
		name, strings.Join(own, ", "), strings.Join(parameters(), ", "))
}

func namedTwice(name string) error {
	return fmt.Errorf("pgstore: the address names %s twice, and it is not clear which one counts; leave one of them out", name)
}

// refusedParameter is the clear form of the server's refusal to know a name of
// the address, nil when err is something else. given are what was sent. The
// server answers once for each way to connect that is tried.
func refusedParameter(err error, given map[string]string) error {
	var ce *pgconn.ConnectError
	var pe *pgconn.PgError
	if !errors.As(err, &ce) || !errors.As(err, &pe) {
		return nil
	}
	// A pooler has a code of its own for it, and a server another language.
	if pe.Code != "42704" && !(pe.Code == "08P01" && strings.Contains(pe.Message, "startup parameter")) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if name != "application_name" && strings.Contains(strings.ToLower(pe.Message), strings.ToLower(name)) {
			return unknownParameter(name)
		}
	}
	return nil
}
