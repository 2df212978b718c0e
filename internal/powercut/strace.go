package powercut

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// harmless are the calls that change no file and make none durable. All others
// are recorded; one below the root that the model cannot follow is an error and
// not a hole in the recording. Calls that strace does not know by name are among
// the recorded ones only as long as this is a list of exceptions.
var harmless = []string{
	"read", "pread64", "readv", "preadv", "preadv2", "close", "close_range", "lseek", "dup", "dup2", "dup3", "fcntl", "flock", "ioctl",
	"stat", "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
	"getdents", "getdents64", "name_to_handle_at", "getxattr", "lgetxattr", "fgetxattr", "listxattr", "quotactl", "getcwd", "chdir", "fchdir", "umask",
	"futex", "madvise", "mmap", "munmap", "mremap", "mprotect", "brk", "mincore", "mlock", "membarrier", "personality",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "kill", "tgkill", "tkill", "signalfd4", "restart_syscall",
	"epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2", "pipe", "pipe2", "poll", "ppoll", "select", "pselect6",
	"nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "times", "timer_create", "timer_settime", "timer_delete", "setitimer",
	"sched_yield", "sched_getaffinity", "sched_setaffinity", "clone", "clone3", "fork", "vfork", "execve", "execveat", "exit", "exit_group", "wait4", "waitid",
	"gettid", "getpid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getgroups", "getpgid", "setpgid", "getrlimit", "setrlimit", "prlimit64", "getrusage",
	"prctl", "arch_prctl", "set_tid_address", "set_robust_list", "rseq", "getrandom", "uname", "sysinfo", "capget",
	"socket", "connect", "sendto", "recvfrom", "sendmsg", "recvmsg", "shutdown", "getsockname", "getpeername", "setsockopt", "getsockopt",
}

// Strace is the command line that records (without --seccomp-bpf, which is
// faster and overlooks calls that strace has no name for) the program which is appended to it
// into the file out. Package strace of Debian provides the program.
func Strace(out string) []string {
	calls := make([]string, len(harmless))
	for i, c := range harmless {
		calls[i] = "?" + c // not every machine has every call
	}
	return []string{"strace", "-f", "-qq", "-y", "-xx", "-s", strconv.Itoa(1 << 24), "-o", out,
		"-e", "signal=none", "-e", "trace=!" + strings.Join(calls, ",")}
}

const markPrefix = "powercut-mark:"

// Mark leaves a note in the recording of the calling process: it tries to
// remove a file that does not exist. The root must be that of Parse.
func Mark(root, note string) { _ = syscall.Unlink(filepath.Join(root, markPrefix+note)) }

type opKind string

const (
	opWrite, opTruncate                    opKind = "write", "truncate"
	opOpen, opMkdir, opRename              opKind = "open", "mkdir", "rename"
	opLink, opUnlink, opRmdir              opKind = "link", "unlink", "rmdir"
	opChmod, opChown                       opKind = "chmod", "chown"
	opFsync, opFdatasync, opSyncFS, opMark opKind = "fsync", "fdatasync", "syncfs", "mark"
)

// op is one call that succeeded. enter and exit are its places in the order of
// the recording.
type op struct {
	kind        opKind
	path, to    string
	data        []byte
	off         int64 // -1: at the end of what was written
	size        int64
	mode        uint32
	uid, gid    int
	trunc       bool
	enter, exit int
}

// call is one line, or two halves of it.
type call struct {
	name  string
	args  []arg
	ret   int64
	path  string         // of the descriptor that it returned
	fds   map[int]string // paths of the descriptors, as they were opened
	enter int
	exit  int
}

// arg is one argument: a text, or a number or flags with the path that strace
// shows for a descriptor.
type arg struct {
	text  string
	isStr bool
	cut   bool // strace shortened it
	word  string
	path  string
}

// readStrace turns strace's output into operations below root.
func readStrace(r io.Reader, root string) ([]op, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 1<<20), 1<<28)
	open := map[string]call{} // by thread
	begun := map[string]string{}
	fds := map[int]string{}
	var ops []op
	for n := 1; sc.Scan(); n++ {
		pid, line, ok := strings.Cut(sc.Text(), " ")
		if !ok {
			return nil, fmt.Errorf("powercut: line %d: no call in it: %.80q", n, sc.Text())
		}
		line = strings.TrimLeft(line, " ")
		if strings.HasPrefix(line, "---") || strings.HasPrefix(line, "+++") {
			continue
		}
		enter := n
		if head, ok := strings.CutSuffix(line, "<unfinished ...>"); ok {
			begun[pid] = head
			open[pid] = call{enter: n}
			continue
		}
		if strings.HasPrefix(line, "<... ") {
			_, tail, ok := strings.Cut(line, " resumed>")
			if !ok || begun[pid] == "" {
				return nil, fmt.Errorf("powercut: line %d: a call ends that never began", n)
			}
			line, enter = begun[pid]+tail, open[pid].enter
			delete(begun, pid)
		}
		c, err := parseCall(line)
		if err != nil {
			return nil, fmt.Errorf("powercut: line %d: %w: %.200q", n, err, line)
		}
		c.enter, c.exit, c.fds = enter, n, fds
		if c.ret >= 0 && c.path != "" {
			fds[int(c.ret)] = c.path
		}
		o, err := c.op(root)
		if err != nil {
			return nil, fmt.Errorf("powercut: line %d: %w: %.200q", n, err, line)
		}
		if o != nil {
			o.enter, o.exit = c.enter, c.exit
			ops = append(ops, *o)
		}
	}
	return ops, sc.Err()
}

// parseCall reads name(arg, …) = result. With -xx all texts and paths are
// hexadecimal, so brackets and commas are never part of one.
func parseCall(line string) (call, error) {
	i := strings.IndexByte(line, '(')
	end := strings.LastIndex(line, ") ")
	if i < 0 || end < i {
		return call{}, fmt.Errorf("this is no call")
	}
	c := call{name: line[:i]}
	res := strings.TrimLeft(line[end+1:], " ")
	res, ok := strings.CutPrefix(res, "= ")
	if !ok {
		return call{}, fmt.Errorf("the call has no result")
	}
	num := res
	for j, ch := range res {
		if ch == ' ' || ch == '<' {
			num = res[:j]
			break
		}
	}
	if num == "?" { // the thread was killed inside it
		c.ret = -1
	} else if v, err := strconv.ParseInt(num, 0, 64); err != nil {
		return call{}, fmt.Errorf("the result %q is no number", num)
	} else {
		c.ret, c.path = v, parseArg(res).path
	}
	depth, from := 0, i+1
	for j := i + 1; j <= end; j++ {
		switch line[j] {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case ',', ')':
			if line[j] == ')' && j != end || depth > 0 {
				continue
			}
			if a := strings.TrimSpace(line[from:j]); a != "" {
				c.args = append(c.args, parseArg(a))
			}
			from = j + 1
		}
	}
	return c, nil
}

func parseArg(s string) arg {
	if strings.HasPrefix(s, `"`) {
		if q := strings.LastIndexByte(s, '"'); q > 0 {
			return arg{text: unhex(s[1:q]), isStr: true, cut: strings.HasSuffix(s, "...")}
		}
	}
	a := arg{word: s}
	if i := strings.IndexByte(s, '<'); i >= 0 {
		if j := strings.LastIndexByte(s, '>'); j > i {
			a.word, a.path = s[:i], unhex(s[i+1:j])
		}
	}
	return a
}

func unhex(s string) string {
	out := make([]byte, 0, len(s)/4)
	for i := 0; i < len(s); {
		if i+4 <= len(s) && s[i] == '\\' && s[i+1] == 'x' {
			if v, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				out = append(out, byte(v))
				i += 4
				continue
			}
		}
		out = append(out, s[i])
		i++
	}
	return string(out)
}

// at is the path of argument i relative to the directory of argument dir; -1
// for calls without one.
func (c call) at(dir, i int) (string, error) {
	if i >= len(c.args) || !c.args[i].isStr {
		return "", fmt.Errorf("argument %d is no path", i)
	}
	p := c.args[i].text
	if fd, ok := strings.CutPrefix(p, "/proc/self/fd/"); ok {
		n, err := strconv.Atoi(fd)
		if err != nil || c.fds[n] == "" {
			return "", fmt.Errorf("the descriptor in %q is not known", p)
		}
		return c.fds[n], nil
	}
	if path.IsAbs(p) {
		return path.Clean(p), nil
	}
	if dir < 0 || c.args[dir].path == "" {
		return "", fmt.Errorf("the path %q is relative to something unknown", p)
	}
	return path.Join(c.args[dir].path, p), nil
}

func (c call) fd(i int) string {
	if i < len(c.args) {
		return c.args[i].path
	}
	return ""
}

func (c call) num(i int) int64 {
	if i >= len(c.args) {
		return 0
	}
	v, err := strconv.ParseInt(c.args[i].word, 0, 64)
	if err != nil {
		return -1
	}
	return v
}

func (c call) flags(i int) string {
	if i < len(c.args) {
		return c.args[i].word
	}
	return ""
}

// op is the change that a call made below root, nil for none.
func (c call) op(root string) (*op, error) {
	in := func(p string) bool { return p == root || strings.HasPrefix(p, root+"/") }
	if c.ret < 0 {
		return c.mark(root), nil
	}
	if strings.HasPrefix(c.name, "syscall_") {
		return c.unnamed(in)
	}
	switch c.name {
	case "write", "pwrite64":
		p := c.fd(0)
		if !in(p) {
			return nil, nil
		}
		if c.args[1].cut || int64(len(c.args[1].text)) < c.ret {
			return nil, fmt.Errorf("the data of a write are not complete")
		}
		o := &op{kind: opWrite, path: p, data: []byte(c.args[1].text)[:c.ret], off: -1}
		if c.name == "pwrite64" {
			o.off = c.num(3)
		}
		return o, nil
	case "ftruncate":
		if !in(c.fd(0)) {
			return nil, nil
		}
		return &op{kind: opTruncate, path: c.fd(0), size: c.num(1)}, nil
	case "fsync", "fdatasync", "syncfs":
		kind := opKind(c.name)
		if kind != opSyncFS && !in(c.fd(0)) {
			return nil, nil
		}
		return &op{kind: kind, path: c.fd(0)}, nil
	case "sync":
		return &op{kind: opSyncFS, path: root}, nil
	case "fchmod":
		if !in(c.fd(0)) {
			return nil, nil
		}
		return &op{kind: opChmod, path: c.fd(0), mode: uint32(c.num(1))}, nil
	case "fchown":
		if !in(c.fd(0)) {
			return nil, nil
		}
		return &op{kind: opChown, path: c.fd(0), uid: int(c.num(1)), gid: int(c.num(2))}, nil
	}
	return c.byName(in)
}

// unnamed are the calls that are newer than strace; it shows plain numbers.
func (c call) unnamed(in func(string) bool) (*op, error) {
	const fchmodat2, emptyPath = "syscall_0x1c4", 0x1000
	if c.name != fchmodat2 || c.num(3)&emptyPath == 0 {
		return nil, fmt.Errorf("the call %s is not modelled", c.name)
	}
	p := c.fds[int(c.num(0))]
	if p == "" {
		return nil, fmt.Errorf("the descriptor %d is not known", c.num(0))
	}
	if !in(p) {
		return nil, nil
	}
	return &op{kind: opChmod, path: p, mode: uint32(c.num(2))}, nil
}

// byName are the calls that name what they change.
func (c call) byName(in func(string) bool) (*op, error) {
	d := -1 // argument with the directory
	switch c.name {
	case "openat", "openat2", "mkdirat", "unlinkat", "fchmodat", "fchmodat2", "fchownat", "renameat", "renameat2", "linkat":
		d = 0
	case "open", "creat", "mkdir", "unlink", "rmdir", "chmod", "chown", "lchown", "rename", "link":
	default: // not modelled
		for _, a := range c.args {
			if in(a.path) || a.isStr && in(a.text) {
				return nil, fmt.Errorf("the call %s is not modelled", c.name)
			}
		}
		return nil, nil
	}
	name := d + 1
	p, err := c.at(d, name)
	if err != nil {
		if d == 0 && !in(c.fd(0)) {
			return nil, nil
		}
		return nil, err
	}
	two := strings.HasPrefix(c.name, "rename") || strings.HasPrefix(c.name, "link")
	if two {
		d2, n2 := -1, 1
		if d == 0 {
			d2, n2 = 2, 3
		}
		to, err := c.at(d2, n2)
		if err != nil {
			return nil, err
		}
		if !in(p) && !in(to) {
			return nil, nil
		}
		kind := opRename
		if c.name[0] == 'l' {
			kind = opLink
		}
		if f := c.flags(4); strings.Contains(f, "EXCHANGE") || strings.Contains(f, "EMPTY_PATH") {
			return nil, fmt.Errorf("the flags %s are not modelled", f)
		}
		return &op{kind: kind, path: p, to: to}, nil
	}
	if !in(p) {
		return nil, nil
	}
	switch c.name {
	case "open", "openat", "openat2", "creat":
		f := c.flags(name + 1)
		if strings.Contains(f, "TMPFILE") {
			return nil, fmt.Errorf("O_TMPFILE is not modelled")
		}
		if !strings.Contains(f, "O_CREAT") && !strings.Contains(f, "O_TRUNC") {
			return nil, nil
		}
		mode := uint32(0o644)
		if m := c.num(name + 2); m > 0 {
			mode = uint32(m)
		}
		return &op{kind: opOpen, path: p, trunc: strings.Contains(f, "O_TRUNC"), mode: mode}, nil
	case "mkdir", "mkdirat":
		return &op{kind: opMkdir, path: p, mode: uint32(c.num(name + 1))}, nil
	case "unlink":
		return &op{kind: opUnlink, path: p}, nil
	case "rmdir":
		return &op{kind: opRmdir, path: p}, nil
	case "unlinkat":
		if strings.Contains(c.flags(name+1), "REMOVEDIR") {
			return &op{kind: opRmdir, path: p}, nil
		}
		return &op{kind: opUnlink, path: p}, nil
	case "chmod", "fchmodat", "fchmodat2":
		return &op{kind: opChmod, path: p, mode: uint32(c.num(name + 1))}, nil
	default:
		return &op{kind: opChown, path: p, uid: int(c.num(name + 1)), gid: int(c.num(name + 2))}, nil
	}
}

// mark finds the notes that Mark left.
func (c call) mark(root string) *op {
	for _, a := range c.args {
		if note, ok := strings.CutPrefix(a.text, root+"/"+markPrefix); a.isStr && ok {
			return &op{kind: opMark, path: note}
		}
	}
	return nil
}

// ReadFile parses the recording in the file at name; see [Parse].
func ReadFile(name, root string, initial Tree, unsynced ...string) (*Recording, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("powercut: %w", err)
	}
	defer f.Close()
	return Parse(f, root, initial, unsynced...)
}

// Under makes a command run under [Strace]; it fits an option of testkit. The
// command must be a link to the running program, as there.
func Under(out string) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		args := Strace(out)
		self, err := os.Executable()
		if err != nil {
			c.Err = fmt.Errorf("powercut: %w", err)
			return
		}
		strace, err := exec.LookPath(args[0])
		if err != nil {
			c.Err = fmt.Errorf("powercut: %w", err)
			return
		}
		c.Args = append(append(args, self), c.Args[1:]...)
		c.Path = strace
	}
}
