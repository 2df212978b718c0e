package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt maps its file into memory and trusts what it finds there: a damaged
// page can end the process, in a goroutine that nobody can guard. So the file
// is read here first, with plain reads and every bound checked, and bbolt only
// gets a file whose structure is sound. The checks are at least as strict as
// those that bbolt makes by panicking.
//
// Integers in the file have the machine's own byte order.

const (
	pageHeader    = 16
	elementSize   = 16
	metaSize      = 64
	branchFlag    = 0x01
	leafFlag      = 0x02
	freelistFlag  = 0x10
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	noFreelist    = ^uint64(0)
	maxDepth      = 48
	maxPageBytes  = 256 << 20
	bucketElement = 1
)

var order = binary.NativeEndian

// pageFile is a bbolt file under verification.
type pageFile struct {
	r        io.ReaderAt
	size     int64
	pageSize int
	meta     boltMeta
	used     []uint64 // bitmap of pages that something refers to
	buffers  [maxDepth][]byte
}

type boltMeta struct {
	pageSize uint32
	root     uint64
	freelist uint64
	pages    uint64 // high water mark
	txid     uint64
}

// boltBucket is a top-level bucket: its root page, or its inline page.
type boltBucket struct {
	name   string
	root   uint64
	inline []byte
}

// openPageFile reads both meta pages. Both must be valid: they are written one
// sector at a time, so a half-written one does not come from a crash, and with
// the newer one lost, bbolt would silently go back by one commit.
func openPageFile(r io.ReaderAt, size int64) (*pageFile, error) {
	f := &pageFile{r: r, size: size}
	var metas [2]boltMeta
	var errs [2]error
	head := make([]byte, pageHeader+metaSize)
	metas[0], errs[0] = f.readMeta(head, 0)
	sizes := []int64{int64(metas[0].pageSize)}
	if errs[0] != nil {
		sizes = []int64{1 << 12, 1 << 14, 1 << 16, 1 << 10, 1 << 11, 1 << 13, 1 << 15}
	}
	for _, at := range sizes {
		if metas[1], errs[1] = f.readMeta(head, at); errs[1] == nil {
			break
		}
	}
	switch {
	case errs[0] != nil && errs[1] != nil:
		if errors.Is(errs[0], errForeign) && errors.Is(errs[1], errForeign) {
			return nil, ErrNotStore
		}
		return nil, damaged("both meta pages are damaged (%v; %v)", errs[0], errs[1])
	case errs[0] != nil:
		return nil, damaged("meta page 0: %v; the newest commit may be the one it held", errs[0])
	case errs[1] != nil:
		return nil, damaged("meta page 1: %v; the newest commit may be the one it held", errs[1])
	case metas[0].pageSize != metas[1].pageSize:
		return nil, damaged("the meta pages name different page sizes")
	}
	f.meta = metas[0]
	if metas[1].txid > metas[0].txid {
		f.meta = metas[1]
	}
	f.pageSize = int(f.meta.pageSize)
	if f.meta.pages < 3 || f.meta.pages > uint64(size)/uint64(f.pageSize) {
		return nil, damaged("the file has %d bytes and should have %d pages of %d: it was cut", size, f.meta.pages, f.pageSize)
	}
	f.used = make([]uint64, f.meta.pages/64+1)
	return f, nil
}

var errForeign = errors.New("it is not a page of a commit store")

func (f *pageFile) readMeta(b []byte, at int64) (boltMeta, error) {
	if _, err := f.r.ReadAt(b, at); err != nil {
		if errors.Is(err, io.EOF) {
			return boltMeta{}, fmt.Errorf("the file ends before it: %w", errForeign)
		}
		return boltMeta{}, err
	}
	m := b[pageHeader:]
	if order.Uint32(m) != boltMagic {
		return boltMeta{}, errForeign
	}
	h := fnv.New64a()
	h.Write(m[:56])
	if h.Sum64() != order.Uint64(m[56:]) {
		return boltMeta{}, errors.New("its checksum is wrong")
	}
	if v := order.Uint32(m[4:]); v != boltVersion {
		return boltMeta{}, fmt.Errorf("it has version %d, this program reads %d", v, boltVersion)
	}
	d := boltMeta{pageSize: order.Uint32(m[8:]), root: order.Uint64(m[16:]), freelist: order.Uint64(m[32:]), pages: order.Uint64(m[40:]), txid: order.Uint64(m[48:])}
	if d.pageSize < 1024 || d.pageSize > 1<<16 || d.pageSize&(d.pageSize-1) != 0 {
		return boltMeta{}, fmt.Errorf("it names pages of %d bytes", d.pageSize)
	}
	return d, nil
}

// buckets walks the root and lists the top-level buckets.
func (f *pageFile) buckets() ([]boltBucket, error) {
	var out []boltBucket
	err := f.walk(f.meta.root, func(flags uint32, key, value []byte) error {
		if flags != bucketElement || len(value) < 16 {
			return damaged("the root holds something that is no bucket")
		}
		b := boltBucket{name: string(key), root: order.Uint64(value)}
		if b.root == 0 {
			b.inline = bytes.Clone(value[16:])
		}
		out = append(out, b)
		return nil
	})
	return out, err
}

// records calls visit for every record of a bucket in key order. The slices
// are valid during the call only.
func (f *pageFile) records(b boltBucket, visit func(key, value []byte) error) error {
	leaf := func(flags uint32, key, value []byte) error {
		if flags != 0 {
			return damaged("bucket %q holds another bucket", b.name)
		}
		return visit(key, value)
	}
	var err error
	if b.inline != nil {
		_, err = f.leaf(0, b.inline, bounds{}, leaf)
	} else {
		err = f.walk(b.root, leaf)
	}
	if err != nil {
		return fmt.Errorf("bucket %q: %w", b.name, err)
	}
	return nil
}

// bounds of the keys in a subtree: from low, inclusive, up to high, exclusive;
// nil is open.
type bounds struct{ low, high []byte }

type leafFunc func(flags uint32, key, value []byte) error

func (f *pageFile) walk(root uint64, fn leafFunc) error {
	return f.page(root, 0, true, bounds{}, fn)
}

func (f *pageFile) page(id uint64, depth int, root bool, in bounds, fn leafFunc) error {
	if depth >= maxDepth {
		return damaged("page %d lies too deep: the pages form a ring", id)
	}
	p, err := f.read(id, depth)
	if err != nil {
		return err
	}
	switch flags := order.Uint16(p[8:]); flags {
	case leafFlag:
		n, err := f.leaf(id, p, in, fn)
		if err == nil && n == 0 && !root {
			err = damaged("page %d has no records", id)
		}
		return err
	case branchFlag:
		return f.branch(id, p, depth, in, fn)
	default:
		return damaged("page %d has type %#x where a branch or a leaf belongs", id, flags)
	}
}

// read loads a page with its overflow pages and marks them used.
func (f *pageFile) read(id uint64, depth int) ([]byte, error) {
	if id < 2 || id >= f.meta.pages {
		return nil, damaged("something refers to page %d of %d", id, f.meta.pages)
	}
	buf := f.buffers[depth]
	if len(buf) < f.pageSize {
		buf = make([]byte, 4*f.pageSize)
	}
	at := int64(id) * int64(f.pageSize)
	if _, err := f.r.ReadAt(buf[:f.pageSize], at); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	if got := order.Uint64(buf); got != id {
		return nil, damaged("page %d calls itself %d", id, got)
	}
	over := uint64(order.Uint32(buf[12:]))
	if id+over >= f.meta.pages || (over+1)*uint64(f.pageSize) > maxPageBytes {
		return nil, damaged("page %d claims to go on for %d more pages", id, over)
	}
	size := int(over+1) * f.pageSize
	if size > len(buf) {
		buf = append(make([]byte, 0, size), buf[:f.pageSize]...)[:size]
	}
	if over > 0 {
		if _, err := f.r.ReadAt(buf[f.pageSize:size], at+int64(f.pageSize)); err != nil {
			return nil, fmt.Errorf("read page %d: %w", id, err)
		}
	}
	f.buffers[depth] = buf
	return buf[:size], f.use(id, over)
}

func (f *pageFile) use(id, over uint64) error {
	for i := id; i <= id+over; i++ {
		if f.used[i/64]&(1<<(i%64)) != 0 {
			return damaged("page %d is used twice", i)
		}
		f.used[i/64] |= 1 << (i % 64)
	}
	return nil
}

// leaf checks a leaf page and calls fn for its elements.
func (f *pageFile) leaf(id uint64, p []byte, in bounds, fn leafFunc) (int, error) {
	if len(p) < pageHeader || order.Uint16(p[8:]) != leafFlag || order.Uint64(p) != id || id == 0 && order.Uint32(p[12:]) != 0 {
		return 0, damaged("the page inside a bucket's record is malformed")
	}
	count := int(order.Uint16(p[10:]))
	if pageHeader+count*elementSize > len(p) {
		return 0, damaged("page %d claims %d records", id, count)
	}
	var prev []byte
	for i := range count {
		at := pageHeader + i*elementSize
		e := p[at:]
		pos, ksize, vsize := uint64(order.Uint32(e[4:])), uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
		start := uint64(at) + pos
		if pos < elementSize || ksize == 0 || start+ksize+vsize > uint64(len(p)) {
			return 0, damaged("record %d of page %d lies outside the page", i, id)
		}
		key := p[start : start+ksize]
		if err := in.check(id, i, prev, key); err != nil {
			return 0, err
		}
		prev = key
		if err := fn(order.Uint32(e), key, p[start+ksize:start+ksize+vsize]); err != nil {
			return 0, err
		}
	}
	return count, nil
}

func (f *pageFile) branch(id uint64, p []byte, depth int, in bounds, fn leafFunc) error {
	count := int(order.Uint16(p[10:]))
	if count == 0 || pageHeader+count*elementSize > len(p) {
		return damaged("page %d claims %d branches", id, count)
	}
	element := func(i int) (key []byte, child uint64, ok bool) {
		at := pageHeader + i*elementSize
		e := p[at:]
		pos, ksize := uint64(order.Uint32(e)), uint64(order.Uint32(e[4:]))
		start := uint64(at) + pos
		if pos < elementSize || ksize == 0 || start+ksize > uint64(len(p)) {
			return nil, 0, false
		}
		return p[start : start+ksize], order.Uint64(e[8:]), true
	}
	// All keys are checked before the first descent, since a child is bounded
	// by the key after it.
	var prev []byte
	for i := range count {
		key, _, ok := element(i)
		if !ok {
			return damaged("branch %d of page %d lies outside the page", i, id)
		}
		if err := in.check(id, i, prev, key); err != nil {
			return err
		}
		prev = key
	}
	for i := range count {
		key, child, _ := element(i)
		sub := bounds{low: key, high: in.high}
		if i+1 < count {
			sub.high, _, _ = element(i + 1)
		}
		if err := f.page(child, depth+1, false, sub, fn); err != nil {
			return err
		}
	}
	return nil
}

func (in bounds) check(page uint64, i int, prev, key []byte) error {
	switch {
	case prev != nil && bytes.Compare(prev, key) >= 0,
		in.low != nil && bytes.Compare(key, in.low) < 0,
		in.high != nil && bytes.Compare(key, in.high) >= 0:
		return damaged("key %d of page %d is out of order", i, page)
	}
	return nil
}

// freelist checks a stored list of free pages, which other tools leave behind;
// this package never writes one. It must be called after all buckets were read.
func (f *pageFile) freelist() error {
	if f.meta.freelist == noFreelist {
		return nil
	}
	p, err := f.read(f.meta.freelist, 0)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	if order.Uint16(p[8:]) != freelistFlag {
		return damaged("page %d is not the list of free pages", f.meta.freelist)
	}
	count, at := uint64(order.Uint16(p[10:])), pageHeader
	if count == 0xffff {
		count, at = order.Uint64(p[pageHeader:]), pageHeader+8
	}
	if count > uint64(len(p)-at)/8 {
		return damaged("the list of free pages claims %d of them", count)
	}
	for i := range int(count) {
		id := order.Uint64(p[at+8*i:])
		if id < 2 || id >= f.meta.pages {
			return damaged("the list of free pages names page %d", id)
		}
		if err := f.use(id, 0); err != nil {
			return fmt.Errorf("list of free pages: %w", err)
		}
	}
	return nil
}
