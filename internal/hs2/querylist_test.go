package hs2_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

func list(t *testing.T, c hs2.QueryListConfig) *hs2.QueryList {
	t.Helper()
	q, err := hs2.NewQueryList(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	return q
}

// web serves body for every path.
func web(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestTheQueryListFindsATokenInAComment(t *testing.T) {
	t.Parallel()
	srv, _, session := fake(t)
	srv.Statement("", hs2test.Run{Steps: []hs2test.Step{hs2test.Running(), hs2test.Running(), hs2test.Finished(3)}})
	op, err := session.Execute(t.Context(), "/* token=t1 */ INSERT", nil)
	require.NoError(t, err)
	_, err = session.Execute(t.Context(), "/* token=t2 */ INSERT", nil)
	require.NoError(t, err)
	q := list(t, hs2.QueryListConfig{URL: srv.WebUI()})
	found, err := q.Find(bounded(t), "token=t1")
	require.NoError(t, err)
	require.Len(t, found, 1)
	id, err := op.QueryID(t.Context())
	require.NoError(t, err)
	require.Equal(t, hs2.Running, found[0].State)
	require.Equal(t, id, found[0].QueryID)
	require.Equal(t, op.Handle().GUID(), found[0].Operation)
	require.Equal(t, session.Handle().GUID(), found[0].Session)
	require.Equal(t, "/* token=t1 */ INSERT", found[0].Text)
	require.Equal(t, "MAPRED", found[0].Tasks[0].Type)
	_, err = op.Wait(bounded(t), nil)
	require.NoError(t, err)
	require.NoError(t, op.Close(t.Context()))
	found, err = q.Find(bounded(t), "token=t1")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, hs2.Finished, found[0].State)
	require.False(t, found[0].Running)
	found, err = q.Find(bounded(t), "token=t3")
	require.NoError(t, err)
	require.Empty(t, found)
}

// TestAStatementThatIsClosedMeanwhileIsNotMissed, and shows its later state.
func TestAStatementThatIsClosedMeanwhileIsNotMissed(t *testing.T) {
	t.Parallel()
	const entry = `{"state":%q,"operationId":"g1","queryDisplay":{"queryString":"/* token=t1 */ INSERT"}}`
	url := web(t, func(w http.ResponseWriter, r *http.Request) {
		state := "RUNNING"
		if strings.HasSuffix(r.URL.Path, "historical") {
			state = "CLOSED"
		}
		fmt.Fprintf(w, "["+entry+"]", state)
	})
	found, err := list(t, hs2.QueryListConfig{URL: url}).Find(bounded(t), "token=t1")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, hs2.Closed, found[0].State)
}

// TestWhatTheQueryListMakesOfAnswers: strange values are passed over, a list that
// may hide a statement is refused.
func TestWhatTheQueryListMakesOfAnswers(t *testing.T) {
	t.Parallel()
	for body, bad := range map[string]bool{
		`[]`: false,
		`[{"state":"RUNNING","queryDisplay":{"queryString":"q"},"new":{"a":[1]},"beginTime":"yesterday","endTime":{},"running":"yes","userName":5}]`: false,
		`[{"state":"RUNNING","queryDisplay":null}]`: false,
		`[{"state":"RUNNING"}]`:                     false,
		`[{"state":"RUNNING","queryDisplay":{"queryString":null,"taskDisplays":"none"}}]`: false,
		`[{"state":"DANCING","queryDisplay":{"queryString":"q"}}]`:                        false,
		``:                      true,
		`null`:                  true,
		`{}`:                    true,
		`[1]`:                   true,
		`[{"state":"RUNNING"},`: true,
		`<html>log in</html>`:   true,
		`[{}]`:                  true,
		`[null]`:                true,
		`[{"state":7}]`:         true,
		`[{"state":"RUNNING","queryDisplay":"q"}]`:                  true,
		`[{"state":"RUNNING","queryDisplay":{"queryString":7}}]`:    true,
		`[{"state":"RUNNING","queryDisplay":{"queryString":"q"}}]x`: true,
	} {
		url := web(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		queries, err := list(t, hs2.QueryListConfig{URL: url}).Active(bounded(t))
		if bad {
			require.Error(t, err, "%s", body)
			require.ErrorContains(t, err, url+"/api/v1/queries/active")
			continue
		}
		require.NoError(t, err, "%s", body)
		for _, q := range queries {
			require.NotEmpty(t, q.StateText)
			require.Equal(t, q.StateText == "RUNNING", q.State == hs2.Running)
		}
	}
}

func TestTheQueryListHasLimits(t *testing.T) {
	t.Parallel()
	long := web(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat(" ", 2000)+"[]") })
	_, err := list(t, hs2.QueryListConfig{URL: long, MaxBody: 1000}).Active(bounded(t))
	require.ErrorContains(t, err, "more than 1000 bytes")
	_, err = list(t, hs2.QueryListConfig{URL: long}).Active(bounded(t))
	require.NoError(t, err)

	gone := make(chan struct{})
	silent := web(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-gone:
		}
	})
	t.Cleanup(func() { close(gone) })
	_, err = list(t, hs2.QueryListConfig{URL: silent, Timeout: 20 * time.Millisecond}).Active(bounded(t))
	require.ErrorIs(t, err, hs2.ErrCallTimeout)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = list(t, hs2.QueryListConfig{URL: silent}).Active(ctx)
	require.ErrorIs(t, err, context.Canceled)

	forbidden := web(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "ann" || password != "s3cret" {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "[]")
	})
	_, err = list(t, hs2.QueryListConfig{URL: forbidden, User: "ann", Password: "s3cret"}).Active(bounded(t))
	require.NoError(t, err)
	_, err = list(t, hs2.QueryListConfig{URL: forbidden, User: "ann", Password: "wrong-secret"}).Active(bounded(t))
	require.ErrorContains(t, err, "who are you")
	require.NotContains(t, err.Error(), "wrong-secret")

	redirect := web(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) })
	_, err = list(t, hs2.QueryListConfig{URL: redirect}).Active(bounded(t))
	require.ErrorContains(t, err, "302")
}

func TestTheQueryListsConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []hs2.QueryListConfig{{}, {URL: "hive:10002"}, {URL: "ftp://hive"}, {URL: "http://"}, {URL: "http://%zz"}, {URL: "http://h", Timeout: -1}, {URL: "http://ann:s3cret@h"}} {
		_, err := hs2.NewQueryList(c)
		require.Error(t, err, "%s", c)
		require.NotContains(t, err.Error(), "s3cret")
		require.NotContains(t, fmt.Sprintf("%v %+v %#v", c, c, c), "s3cret")
	}
}
