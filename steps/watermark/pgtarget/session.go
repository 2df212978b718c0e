package pgtarget

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// sessionError says why nothing that a session tells can be trusted.
type sessionError struct {
	problem string
	// standby: another server is asked for, and this one may become it.
	standby bool
}

func (e *sessionError) Error() string { return e.problem }

// checkSession reads the answer to settingsSQL. The settings are looked at every
// time, since each connection, and each transaction behind a pooler, may have
// another session.
func checkSession(r pgx.Row) error {
	var server, client string
	var standby bool
	if err := r.Scan(&server, &client, &standby, nil, nil, nil); err != nil {
		return err
	}
	// The server would take the bytes of a name for other letters: what is there
	// is not found, and is written a second time under another name.
	switch {
	case server != utf8Encoding:
		return &sessionError{problem: fmt.Sprintf("the encoding of its database is %s, and names and positions need UTF8; use a table in a database WITH ENCODING 'UTF8'", server)}
	case client != utf8Encoding:
		return &sessionError{problem: fmt.Sprintf("client_encoding, of the address or the role, is %s, and names and positions need UTF8; take the setting away, or set it to UTF8", client)}
	case standby:
		return &sessionError{standby: true, problem: "the server is a standby: what it shows may be old, and it takes no move; " +
			"address the primary, or several servers with target_session_attrs=read-write"}
	}
	return nil
}

const utf8Encoding = "UTF8"

// utf8SQL is the condition under which a move changes anything: its session may
// be another than that of the look. One that does not meet it changes no row, and
// the look that follows says why.
const utf8SQL = `current_setting('client_encoding') = 'UTF8'`
