package webhdfs_test

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/webhdfs"
)

const token = "SECRET+/=token"

// fake answers every call with one status and body, and counts them.
func fake(t *testing.T, status int, body string) (*webhdfs.FS, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if got := r.URL.Query().Get("delegation"); got != token {
			t.Errorf("the token arrives as %q", got)
		}
		if r.URL.Query().Has("user.name") {
			t.Error("a user is claimed besides the token")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	f, err := webhdfs.New(webhdfs.Options{Name: "x", URLs: []string{s.URL + "/webhdfs/v1/"}, Namespace: "n", Wait: 20 * time.Millisecond, CallTimeout: time.Second,
		Token: func() (string, error) { return token, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f, &calls
}

func at(p string) commitstep.Address { return commitstep.Address{Resource: "webhdfs://x", Path: p} }

// TestAnswersOfARename: what each answer means, and that no call that changes
// something is repeated when it may have been executed.
func TestAnswersOfARename(t *testing.T) {
	t.Parallel()
	remote := func(class string) string {
		return `{"RemoteException":{"exception":"x","javaClassName":"` + class + `","message":"why\nat Somewhere"}}`
	}
	for name, c := range map[string]struct {
		status    int
		body      string
		class     commitstep.Class
		permanent bool
		is        error
		once      bool
	}{
		"taken":             {403, remote("org.apache.hadoop.fs.FileAlreadyExistsException"), commitstep.ClassRefused, false, fs.ErrExist, true},
		"missing":           {404, remote("java.io.FileNotFoundException"), commitstep.ClassRefused, false, fs.ErrNotExist, true},
		"permission":        {403, remote("org.apache.hadoop.security.AccessControlException"), commitstep.ClassRefused, false, fs.ErrPermission, true},
		"quota":             {403, remote("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException"), commitstep.ClassRefused, true, nil, true},
		"standby":           {403, remote("org.apache.hadoop.ipc.StandbyException"), commitstep.ClassNotSent, false, nil, false},
		"safe mode":         {403, remote("org.apache.hadoop.hdfs.server.namenode.SafeModeException"), commitstep.ClassNotSent, false, nil, false},
		"starting":          {404, "<html>no such page</html>", commitstep.ClassNotSent, false, nil, false},
		"not authenticated": {401, "<html>who are you?</html>", commitstep.ClassRefused, false, nil, true},
		"broken":            {500, "<html>oops</html>", commitstep.ClassUnknown, false, nil, true},
		"proxy":             {502, "", commitstep.ClassUnknown, false, nil, true},
		"redirect":          {307, "", commitstep.ClassRefused, false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, calls := fake(t, c.status, c.body)
			err := f.Rename(t.Context(), at("/a"), at("/b"))
			if err == nil || commitstep.ClassOf(err) != c.class || commitstep.IsPermanent(err) != c.permanent || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("%v (%s, permanent %v)", err, commitstep.ClassOf(err), commitstep.IsPermanent(err))
			}
			if c.is == nil && filesys.Missing(err) {
				t.Errorf("%v is taken for a missing file", err)
			}
			if strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error tells too much: %v", err)
			}
			if c.once != (calls.Load() == 1) {
				t.Errorf("%d calls", calls.Load())
			}
		})
	}
}

// TestFalseIsAnError: a server that says no without a reason has not done it.
func TestFalseIsAnError(t *testing.T) {
	t.Parallel()
	f, _ := fake(t, 200, `{"boolean":false}`)
	if err := f.MkdirAll(t.Context(), at("/some/dir")); err == nil || !strings.Contains(err.Error(), "/some/dir") {
		t.Fatal(err)
	}
	f, _ = fake(t, 200, `{}`)
	if err := f.MkdirAll(t.Context(), at("/d")); err == nil || commitstep.ClassOf(err) != commitstep.ClassUnknown {
		t.Fatal(err)
	}
	f, _ = fake(t, 200, `{"FileStatus":{"type":"FILE","permission":"644"}}`)
	if _, err := f.Stat(t.Context(), at("/f")); err == nil || filesys.Missing(err) {
		t.Fatalf("a file without an id: %v", err)
	}
	f, _ = fake(t, 200, `cut`)
	if _, err := f.Stat(t.Context(), at("/f")); err == nil || filesys.Missing(err) {
		t.Fatal(err)
	}
}

// TestSilence ends with the deadline of the call, or of the caller.
func TestSilence(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(stop) })
	f, err := webhdfs.New(webhdfs.Options{Name: "x", URLs: []string{s.URL}, Namespace: "n", CallTimeout: 100 * time.Millisecond, Wait: time.Millisecond, User: "u"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Rename(t.Context(), at("/a"), at("/b")); !errors.Is(err, context.DeadlineExceeded) || commitstep.ClassOf(err) != commitstep.ClassUnknown {
		t.Fatalf("%v (%s)", err, commitstep.ClassOf(err))
	}
	s.CloseClientConnections()
	s.Listener.Close()
	if err := f.Rename(t.Context(), at("/a"), at("/b")); commitstep.ClassOf(err) != commitstep.ClassNotSent {
		t.Fatalf("nobody listens: %v (%s)", err, commitstep.ClassOf(err))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]webhdfs.Options{
		"no name":    {URLs: []string{"http://a:1"}},
		"no url":     {Name: "a"},
		"no scheme":  {Name: "a", URLs: []string{"a:1"}},
		"a password": {Name: "a", URLs: []string{"http://u:hunter2@a:1"}},
		"a query":    {Name: "a", URLs: []string{"http://a:1/?delegation=hunter2"}},
		"negative":   {Name: "a", URLs: []string{"http://a:1"}, Wait: -1},
	} {
		f, err := webhdfs.New(o)
		if err == nil {
			_ = f.Close()
			t.Errorf("%s is accepted", name)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows it: %v", name, err)
		}
	}
}
