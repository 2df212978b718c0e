package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store is an open store. It implements [store.Full]; all methods are safe for
// concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	o        Options
	location string // for messages: where it is, the same for all
	address  string // for commands: as whoever opened it can give it again
	schema   string // quoted
	runtime  string // the runtime role, for messages
	texts    sync.Map
	settings []any
	mode     execMode
	sockets  sockets
	wrote    atomic.Bool // the server has taken a write of ours
	q        *batch.Queue[*op]

	mu      sync.Mutex
	info    store.Info
	adopted int
	terms   map[uuid.UUID]*term // instances that joined through this Store
	held    map[uuid.UUID]*held // sequences that they hold
	queued  map[uuid.UUID]*held // those with events recorded behind
	lost    [][16]byte          // claims of unknown outcome
	serial  int64               // of the last operation; see op
	timer   *time.Timer
	closed  bool

	garbage   bool // a commit left pages to be collected
	collects  bool
	collector sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

var (
	_ store.Full  = (*Store)(nil)
	_ store.Noter = (*Store)(nil)
)

// term is one lease of an instance, as this process knows it.
type term struct {
	instance commitstep.Instance
	number   int32
	until    time.Time // on this machine's monotonic clock
}

// Open opens the store at dsn: a postgres URL, a libpq keyword string, or ""
// for the libpq environment. The URL parameter schema names the schema. It
// changes nothing; a store is made by a [Migrator]. The error matches ErrSchema
// when the tables are missing or of another version, and ErrUnreachable when
// the server cannot be used: for Options.GiveUp while it answers that it is full,
// starting or stopping, for ten seconds at most while it does not answer.
func Open(ctx context.Context, dsn string, o *Options) (*Store, error) {
	opts := o.withDefaults()
	cfg, err := config(dsn, &opts)
	if err != nil {
		return nil, err
	}
	s := &Store{o: opts, location: location(cfg, opts.Schema), address: address(dsn, cfg, opts.Schema), schema: quoted(opts.Schema), runtime: RuntimeRole(opts.Schema),
		terms: map[uuid.UUID]*term{}, held: map[uuid.UUID]*held{}, queued: map[uuid.UUID]*held{}}
	ms := func(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
	s.settings = []any{ms(opts.StatementTimeout), ms(opts.LockTimeout), ms(opts.IdleTimeout)}
	s.mode.fixed = strings.Contains(dsn, "default_query_exec_mode")
	cfg.BeforeConnect = s.mode.beforeConnect
	cfg.ConnConfig.DialFunc = s.sockets.dial(cfg.ConnConfig.DialFunc)
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("pgstore: %w", err)
	}
	if err := s.firstLook(ctx); err != nil {
		s.closePool()
		return nil, err
	}
	s.q = batch.New(batch.Options{Linger: opts.Linger, Rejoin: opts.Rejoin, MaxBatch: 256}, s.commit)
	return s, nil
}

// readInfo checks the version of the tables and reads what the store is.
func (s *Store) readInfo(ctx context.Context, conn *pgxpool.Conn) error {
	var version int64
	err := conn.QueryRow(ctx, s.sql(`SELECT coalesce(max(version_id), 0) FROM {s}.`+versionTable+` WHERE is_applied`)).Scan(&version)
	switch {
	case isUndefined(err):
		return fmt.Errorf("store %s: %w: there are none, this program needs %d; run `%s`", s.location, ErrSchema, SchemaVersion, s.migrate())
	case err != nil:
		return err
	case version > SchemaVersion:
		return newerSchema(s.location, version)
	case version < SchemaVersion:
		return fmt.Errorf("store %s: %w: they have version %d, this program needs %d; run `%s`", s.location, ErrSchema, version, SchemaVersion, s.migrate())
	}
	if err := s.checkSession(ctx, conn); err != nil {
		return err
	}
	i, adopted, err := s.scanInfo(conn.QueryRow(ctx, s.sql(infoSQL)))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return s.noInfo()
	case err != nil:
		return err
	}
	s.setInfo(i, adopted)
	return nil
}

// checkSession refuses settings under which the store would not keep its
// promises, and that it cannot make right for each transaction.
func (s *Store) checkSession(ctx context.Context, conn *pgxpool.Conn) error {
	var isolation, server, client string
	err := conn.QueryRow(ctx, `SELECT current_setting('transaction_isolation'), current_setting('server_encoding'), current_setting('client_encoding')`).
		Scan(&isolation, &server, &client)
	switch {
	case err != nil:
		return err
	case isolation != "read committed":
		return s.isolationErr(isolation)
	case server != "UTF8":
		return encodingErr(s.location, "the encoding of the database", server)
	case client != "UTF8":
		return encodingErr(s.location, "client_encoding, of the address or the role,", client)
	}
	return nil
}

// chooseMode has statements kept prepared when the server itself answers.
func (s *Store) chooseMode(ctx context.Context, conn *pgxpool.Conn) error {
	if s.mode.fixed || s.mode.prepared.Load() {
		return nil
	}
	direct, err := isDirect(ctx, conn.Conn())
	if err == nil && direct {
		s.mode.prepared.Store(true)
		s.pool.Reset()
	}
	return err
}

const infoSQL = `SELECT id, created, sealed_for, stamped, adoptions, table_oid = tableoid AND
	database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()) FROM {s}.store`

func (s *Store) scanInfo(r pgx.Row) (i store.Info, adopted int, err error) {
	i = store.Info{Location: s.address, Format: SchemaVersion, LeaseTTL: s.o.LeaseTTL}
	var original bool
	err = r.Scan(&i.ID, &i.Created, &i.SealedFor, &i.Stamped, &adopted, &original)
	if i.Stamped == "" && !original {
		i.Stamped = restoredStamp
	}
	i.Created, i.SealedFor, i.Unfinished = i.Created.UTC(), fromText(i.SealedFor), isUnfinished(i.Stamped)
	return i, adopted, err
}

func (s *Store) noInfo() error {
	return fmt.Errorf("store %s: %w: the row that says what the store is is missing", s.location, commitstep.ErrDamaged)
}

func (s *Store) setInfo(i store.Info, adopted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info, s.adopted = i, adopted
}

// refreshInfo reads whether the store was sealed or stamped meanwhile.
func (s *Store) refreshInfo(ctx context.Context) error {
	var i store.Info
	var adopted int
	found := false
	err := s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(infoSQL)).QueryRow(func(r pgx.Row) (err error) {
			i, adopted, err = s.scanInfo(r)
			if found = err == nil; errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		})
	})
	switch {
	case err != nil:
		return err
	case !found:
		return s.noInfo()
	}
	s.setInfo(i, adopted)
	return nil
}

// restoredStamp is the stamp of tables that are not where they were made.
const restoredStamp = "restored from a dump of another database"

// Info describes the store, as of the last lease or refusal.
func (s *Store) Info() store.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Name is where the store is, without who opened it and how: all that use it
// call it so. A copy into it seals the first store with this name.
func (s *Store) Name() string { return s.location }

// Close writes the queued events and closes the connections. Leases are not
// ended: see Leave. When the server is away, it waits for a few seconds only.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		if s.timer != nil {
			s.timer.Stop()
		}
		left := s.takeQueued()
		s.mu.Unlock()
		for _, o := range left {
			if err := s.q.Do(context.Background(), o); err != nil && !errors.Is(err, errRefused) {
				s.closeErr = fmt.Errorf("pgstore: write the queued events: %w", err)
			}
		}
		s.q.Close()
		s.closePool()
	})
	return s.closeErr
}

// closePool closes the connections, once nothing is collected any more: for a
// while as is polite, then all the same.
func (s *Store) closePool() {
	t := time.AfterFunc(closeBudget, s.sockets.close)
	defer t.Stop()
	s.collector.Wait()
	s.pool.Close()
}

func (s *Store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return nil
}

// sql fills the schema's name into a statement, once per statement.
func (s *Store) sql(text string) string {
	if t, ok := s.texts.Load(text); ok {
		return t.(string)
	}
	t := strings.ReplaceAll(text, "{s}", s.schema)
	s.texts.Store(text, t)
	return t
}

// now is the time for what this process writes into records.
func (s *Store) now() time.Time { return time.Now().Round(0).UTC() }

// stampedErr is the refusal of a stamped store. One that is sealed too, for
// target, cannot be adopted, so that the seal is what there is to say.
func (s *Store) stampedErr(stamp, target string) error {
	switch {
	case isUnfinished(stamp):
		return fmt.Errorf("store %s: %w: %w: it is an %s", s.location, commitstep.ErrStamped, store.ErrUnfinished, fromText(stamp))
	case target != "":
		return s.sealedErr(target)
	}
	return fmt.Errorf("store %s: %w (%s); nothing runs before `commitstep store adopt --reason …`", s.location, commitstep.ErrStamped, stamp)
}

func (s *Store) sealedErr(target string) error {
	return fmt.Errorf("store %s: %w: its copy is %s; use that one, and if `commitstep store copy` broke off, repeat it first", s.location, commitstep.ErrSealed, target)
}

// Connections is how many connections the store has open now.
func (s *Store) Connections() int { return int(s.pool.Stat().TotalConns()) }
