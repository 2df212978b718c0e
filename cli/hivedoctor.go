package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/google/uuid"
)

// hiveHealth is what doctor found out about one HiveServer2.
type hiveHealth struct {
	Name      string `json:"name"`
	From      string `json:"from"`
	Address   string `json:"address"`
	Transport string `json:"transport"`
	TLS       bool   `json:"tls"`
	// User is who logs in, RunsAs who statements run as, by the server's word.
	User       string `json:"user"`
	RunsAs     string `json:"runsAs,omitempty"`
	Version    string `json:"version,omitempty"`
	OK         bool   `json:"ok"`
	Problem    string `json:"problem,omitempty"`
	TookMillis int64  `json:"tookMillis"`
	// AsyncCompile: errors of a statement's text come with its state. Absent where
	// the server does not say.
	AsyncCompile *bool `json:"asyncCompile,omitempty"`
	// SessionSurvives: a session was found again from another connection, after its
	// own had ended.
	SessionSurvives bool `json:"sessionSurvives"`
	// QueryList: the server's list of statements could be read.
	QueryList bool   `json:"queryList"`
	WebUI     string `json:"webUi,omitempty"`
	// Warehouse are the parts of the warehouse whose files can be seen.
	Warehouse []string `json:"warehouse,omitempty"`
	Grace     string   `json:"grace"`
}

func (h hiveHealth) abilities() string {
	var out []string
	say := func(ok bool, yes, no string) {
		if ok {
			out = append(out, yes)
		} else {
			out = append(out, no)
		}
	}
	say(h.SessionSurvives, "sessions survive", "sessions NOT seen to survive")
	say(h.QueryList, "query list", "NO query list")
	if h.AsyncCompile != nil {
		say(*h.AsyncCompile, "compiles behind the call", "compiles within the call")
	}
	return strings.Join(out, ", ")
}

// hiveHealthOf looks at one server. It opens sessions and closes them, and runs
// statements that read nothing.
func hiveHealthOf(ctx context.Context, s *hiveServer) hiveHealth {
	h := hiveHealth{Name: s.Name(), From: s.from, Address: s.cfg.Address, Transport: hs2.TransportBinary.String(), TLS: s.cfg.TLS != nil, User: s.cfg.User,
		WebUI: s.cfg.WebUI, Warehouse: s.volumes, Grace: hivepublish.DefaultGrace.String()}
	if s.cfg.HTTP {
		h.Transport = hs2.TransportHTTP.String()
	}
	if s.cfg.Grace > 0 {
		h.Grace = s.cfg.Grace.String()
	}
	start := time.Now()
	err := s.unready
	if err == nil {
		var listErr error
		asked := false
		look := func(mark string) { asked, listErr = true, h.list(ctx, s, mark) }
		if err = h.thrift(ctx, s, look); !asked {
			look("")
		}
		err = errors.Join(err, listErr)
	}
	h.TookMillis = time.Since(start).Milliseconds()
	if h.OK = err == nil; err != nil {
		h.Problem = oneLine(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return h
}

// thrift asks over the protocol of the statements, and has look for one of its own
// in the list.
func (h *hiveHealth) thrift(ctx context.Context, s *hiveServer, look func(mark string)) (err error) {
	c, err := s.client()
	if err != nil {
		return err
	}
	defer c.Close()
	session, err := c.OpenSession(ctx, s.cfg.Session)
	if err != nil {
		return err
	}
	handle := session.Handle()
	if err := h.statement(ctx, session, look); err != nil {
		return err
	}
	if v, ok := setting(ctx, c, session, "hive.server2.async.exec.async.compile"); ok {
		on := strings.EqualFold(v, "true")
		h.AsyncCompile = &on
	}
	if one, err := c.Single(ctx); err != nil {
		return fmt.Errorf("look for its session from other connections: %w", err)
	} else if !one {
		return errors.New("the address leads to more than one HiveServer2, or sessions end with their connections: statements would not be found again; give the address of one server, and one that honours hive.server2.close.session.on.disconnect=false")
	}
	// From here on as another process would: the first one's connections are gone.
	_ = c.Close()
	other, err := s.client()
	if err != nil {
		return err
	}
	defer other.Close()
	again := other.Session(handle)
	if h.SessionSurvives, err = survives(ctx, again); err != nil {
		return fmt.Errorf("look for its session from another connection: %w", err)
	}
	if !h.SessionSurvives {
		return errors.New("a session ended with its connection: statements would be cancelled when this program ends, and not be found again; use a server that honours hive.server2.close.session.on.disconnect=false")
	}
	if err := again.Close(ctx); err != nil {
		return fmt.Errorf("close its session: %w", err)
	}
	return nil
}

// statement runs one, and looks for it in the list before it is closed: the list of
// another server would show nothing of any publish.
func (h *hiveHealth) statement(ctx context.Context, session *hs2.Session, look func(mark string)) error {
	mark := "commitstep doctor " + uuid.NewString()
	op, err := session.Execute(ctx, "/* "+mark+" */ SELECT version(), current_user()", nil)
	if err != nil {
		return fmt.Errorf("a statement: %w", err)
	}
	defer func() { _ = op.Close(ctx) }() // or it ends with its session
	st, err := op.Wait(ctx, nil)
	if err == nil && st.State != hs2.Finished {
		err = &hs2.StatementError{Status: st}
	}
	if err != nil {
		return fmt.Errorf("a statement: %w", err)
	}
	rows, err := op.Rows(ctx)
	if err != nil {
		return fmt.Errorf("a statement: %w", err)
	}
	for row, err := range rows.All() {
		if err != nil {
			return fmt.Errorf("a statement: %w", err)
		}
		if len(row) == 2 {
			h.Version, h.RunsAs = fmt.Sprint(row[0]), fmt.Sprint(row[1])
		}
	}
	look(mark)
	return nil
}

// survives looks more than once, since a server takes a moment to notice that a
// connection has ended.
func survives(ctx context.Context, s *hs2.Session) (bool, error) {
	const looks, between = 3, 200 * time.Millisecond
	for i := range looks {
		alive, err := s.Alive(ctx)
		if err != nil || !alive || i == looks-1 {
			return alive, err
		}
		t := time.NewTimer(between)
		select {
		case <-ctx.Done():
			t.Stop()
			return false, ctx.Err()
		case <-t.C:
		}
	}
	return true, nil
}

// setting asks for a property; ok is false where the server does not know it.
func setting(ctx context.Context, c *hs2.Client, s *hs2.Session, key string) (string, bool) {
	t, err := c.Query(ctx, s, "SET "+key)
	if err != nil || len(t.Rows) != 1 || len(t.Rows[0]) == 0 {
		return "", false
	}
	_, v, ok := strings.Cut(fmt.Sprint(t.Rows[0][0]), "=")
	return v, ok
}

// list reads the list of the web server, if one is configured, and looks for a
// statement that was just run, unless mark is empty.
func (h *hiveHealth) list(ctx context.Context, s *hiveServer, mark string) error {
	if s.cfg.WebUI == "" {
		return nil
	}
	c := hs2.QueryListConfig{URL: s.cfg.WebUI, User: s.cfg.WebUser, Password: s.cfg.WebUserPassword}
	if s.cfg.TLS != nil {
		c.TLS = s.cfg.TLS.Clone()
		c.TLS.ServerName = "" // that is of the other address
	}
	q, err := hs2.NewQueryList(c)
	if err != nil {
		return err
	}
	defer q.Close()
	found, err := q.Find(ctx, mark)
	if err != nil {
		return err
	}
	if len(found) == 0 && mark != "" {
		return fmt.Errorf("the list of statements of %s does not show one that %s has just run: `web_ui` is another server's, and would show nothing of a publish", c, s.cfg.Address)
	}
	h.QueryList = true
	return nil
}

// hiveDoctorTable adds the servers to doctor's table.
func hiveDoctorTable(t *table, all []hiveHealth) {
	if len(all) == 0 {
		return
	}
	t.line("")
	for _, h := range all {
		state := "ok"
		if !h.OK {
			state = "FAILED"
		}
		who := h.User
		if h.RunsAs != "" && h.RunsAs != h.User {
			who += ", runs as " + h.RunsAs
		}
		version := "-"
		if f := strings.Fields(h.Version); len(f) > 0 {
			version = "Hive " + f[0]
		}
		t.row(state, "hive "+name(h.Name), h.Address, name(who), version, fmt.Sprintf("%d ms", h.TookMillis), h.abilities())
	}
	for _, h := range all {
		if h.Problem != "" {
			t.line("hive %s: %s", name(h.Name), h.Problem)
		}
		if h.OK && h.WebUI == "" {
			t.line("hive %s: no web_ui is configured: less can be shown about a statement whose answer was lost", name(h.Name))
		}
		for _, w := range h.Warehouse {
			t.line("hive %s: %s", name(h.Name), oneLine(w))
		}
		if len(h.Warehouse) == 0 {
			t.line("hive %s: no file system is bound for its warehouse: only hive.insert_overwrite can be published, without a look at its files", name(h.Name))
		}
	}
}
