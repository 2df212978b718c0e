package webhdfs

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/internal/dfs"
)

// transport implements dfs.Transport.
type transport struct {
	o      Options
	client *http.Client
	over   *dfs.Failover
	ns     *dfs.Namespace
	count  func(op string)
}

// fileStatus is the JSON of one file.
type fileStatus struct {
	PathSuffix       string `json:"pathSuffix"`
	Type             string `json:"type"`
	FileID           uint64 `json:"fileId"`
	Length           int64  `json:"length"`
	ModificationTime int64  `json:"modificationTime"`
	Permission       string `json:"permission"`
	Owner            string `json:"owner"`
	Group            string `json:"group"`
	ChildrenNum      *int   `json:"childrenNum"`
	EncBit           bool   `json:"encBit"`
	SnapshotEnabled  bool   `json:"snapshotEnabled"`
}

func (s fileStatus) status() (dfs.Status, error) {
	mode, err := strconv.ParseUint(s.Permission, 8, 16)
	if err != nil || s.FileID == 0 {
		return dfs.Status{}, fmt.Errorf("the name node tells no file id or mode (id %d, mode %q); it is older than those that this program works with", s.FileID, s.Permission)
	}
	children := -1
	if s.ChildrenNum != nil {
		children = *s.ChildrenNum
	}
	return dfs.Status{Name: s.PathSuffix, FileID: s.FileID, Dir: s.Type == "DIRECTORY", Symlink: s.Type == "SYMLINK", Length: s.Length,
		MTimeMS: s.ModificationTime, Mode: uint16(mode), Owner: s.Owner, Group: s.Group, Children: children, Encrypted: s.EncBit, Snapshots: s.SnapshotEnabled}, nil
}

func (t *transport) Stat(ctx context.Context, path string) (dfs.Status, error) {
	var a struct{ FileStatus fileStatus }
	if err := t.ask(ctx, http.MethodGet, "GETFILESTATUS", path, nil, &a); err != nil {
		return dfs.Status{}, err
	}
	return a.FileStatus.status()
}

func (t *transport) Page(ctx context.Context, dir, after string) (dfs.Page, error) {
	var a struct {
		DirectoryListing struct {
			PartialListing struct {
				FileStatuses struct{ FileStatus []fileStatus }
			} `json:"partialListing"`
			RemainingEntries int `json:"remainingEntries"`
		}
	}
	var q query
	if after != "" {
		q = query{"startAfter", after}
	}
	if err := t.ask(ctx, http.MethodGet, "LISTSTATUS_BATCH", dir, q, &a); err != nil {
		return dfs.Page{}, err
	}
	l := a.DirectoryListing
	p := dfs.Page{More: l.RemainingEntries > 0, Total: -1}
	for _, s := range l.PartialListing.FileStatuses.FileStatus {
		st, err := s.status()
		if err != nil {
			return p, err
		}
		p.Entries = append(p.Entries, st)
	}
	if after == "" {
		p.Total = len(p.Entries) + l.RemainingEntries
	}
	return p, nil
}

// yes makes a call that answers with a boolean. A "false" is a failure that
// the server does not explain.
func (t *transport) yes(ctx context.Context, method, op, path string, q query) (bool, error) {
	var a struct {
		Boolean *bool `json:"boolean"`
	}
	if err := t.ask(ctx, method, op, path, q, &a); err != nil {
		return false, err
	}
	if a.Boolean == nil {
		return false, dfs.Lost(fmt.Errorf("%s %s: the answer says neither true nor false", op, path))
	}
	return *a.Boolean, nil
}

func (t *transport) Mkdirs(ctx context.Context, dir string) error {
	ok, err := t.yes(ctx, http.MethodPut, "MKDIRS", dir, query{"permission", "755"})
	if err == nil && !ok {
		err = fmt.Errorf("mkdirs %s: the name node answers false, without saying why", dir)
	}
	return err
}

func (t *transport) Rename(ctx context.Context, from, to string) error {
	// Without the option it would be another call, one that moves into
	// directories and answers true or false.
	return t.ask(ctx, http.MethodPut, "RENAME", from, query{"destination", to, "renameoptions", "NONE"}, nil)
}

func (t *transport) Delete(ctx context.Context, path string) error {
	ok, err := t.yes(ctx, http.MethodDelete, "DELETE", path, query{"recursive", "false"})
	if err != nil || ok {
		return err
	}
	// "false" is also the answer for what is not there.
	switch _, err := t.Stat(ctx, path); {
	case filesys.Missing(err):
		return nil
	case err != nil:
		return fmt.Errorf("after delete: %w", err)
	}
	return fmt.Errorf("delete %s: the name node answers false, without saying why", path)
}

func (t *transport) SetPermission(ctx context.Context, path string, mode uint16) error {
	return t.ask(ctx, http.MethodPut, "SETPERMISSION", path, query{"permission", strconv.FormatUint(uint64(mode), 8)}, nil)
}

func (t *transport) SetOwner(ctx context.Context, path, owner, group string) error {
	var q query
	if owner != "" {
		q = append(q, "owner", owner)
	}
	if group != "" {
		q = append(q, "group", group)
	}
	return t.ask(ctx, http.MethodPut, "SETOWNER", path, q, nil)
}

func (t *transport) CheckAccess(ctx context.Context, path string, a dfs.Access) error {
	action := []byte("---")
	for i, c := range []byte("rwx") {
		if a>>(2-i)&1 != 0 {
			action[i] = c
		}
	}
	return t.ask(ctx, http.MethodGet, "CHECKACCESS", path, query{"fsaction", string(action)}, nil)
}

func (t *transport) Quota(ctx context.Context, dir string) (dfs.Quota, error) {
	var a struct {
		QuotaUsage *struct {
			FileAndDirectoryCount, Quota, SpaceConsumed, SpaceQuota int64
		}
	}
	if err := t.ask(ctx, http.MethodGet, "GETQUOTAUSAGE", dir, nil, &a); err != nil {
		return dfs.Quota{}, err
	}
	if a.QuotaUsage == nil {
		return dfs.Quota{}, fmt.Errorf("the name node does not tell the quota of %s", dir)
	}
	q := a.QuotaUsage
	return dfs.Quota{Names: q.FileAndDirectoryCount, MaxNames: q.Quota, Space: q.SpaceConsumed, MaxSpace: q.SpaceQuota}, nil
}

// blockPool asks one name node's management page.
func (t *transport) blockPool(ctx context.Context, base string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.o.CallTimeout)
	defer cancel()
	return dfs.AskJMX(ctx, t.client, base)
}

func (t *transport) Namespace(ctx context.Context) (string, error) { return t.ns.Get(ctx) }

// redirected asks a name node where to read or write a file's content.
func (t *transport) redirected(ctx context.Context, method, op, path string, q query) (string, error) {
	var a struct{ Location string }
	if err := t.ask(ctx, method, op, path, append(q, "noredirect", "true"), &a); err != nil {
		return "", err
	}
	if a.Location == "" {
		return "", dfs.Lost(fmt.Errorf("%s %s: the name node names no data node", op, path))
	}
	return a.Location, nil
}

func (t *transport) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	at, err := t.redirected(ctx, http.MethodGet, "OPEN", path, nil)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("open %s: the name node sends to a malformed URL", path)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("open %s: data node: %w", path, bare(err))
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return nil, refusal(resp, b, "data node", "OPEN", path)
	}
	return resp.Body, nil
}

// writing reports whether a writer has a file open.
func (t *transport) writing(ctx context.Context, path string) (bool, error) {
	var a struct {
		LocatedBlocks *struct {
			// Of an empty file the last block is never complete, so that says
			// nothing.
			UnderConstruction bool `json:"isUnderConstruction"`
		}
	}
	if err := t.ask(ctx, http.MethodGet, "GET_BLOCK_LOCATIONS", path, nil, &a); err != nil {
		return false, err
	}
	if a.LocatedBlocks == nil {
		return false, fmt.Errorf("the name node does not tell whether %s is still being written", path)
	}
	return a.LocatedBlocks.UnderConstruction, nil
}

// create writes a new file through a data node.
func (t *transport) create(ctx context.Context, path string, content io.Reader) error {
	at, err := t.redirected(ctx, http.MethodPut, "CREATE", path, query{"overwrite", "false"})
	if err != nil {
		return err
	}
	resp, cancel, err := t.do(ctx, http.MethodPut, at, "data node", "CREATE", content)
	if err != nil {
		return err
	}
	defer cancel()
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return dfs.Lost(fmt.Errorf("create %s: %w", path, err))
	}
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK {
		return refusal(resp, b, "data node", "CREATE", path)
	}
	return nil
}
