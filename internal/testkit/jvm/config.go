package jvm

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
)

// nextPort is where the search for ports goes on: two servers that start at
// the same time must not find the same ones.
var nextPort struct {
	sync.Mutex
	n int
}

// FreePorts fills in ports of the loopback that nobody listens on, below the
// range that the kernel gives to outgoing connections: a server that is down
// must find its port again.
func FreePorts(ports ...*int) error {
	const first, count = 12000, 20000
	nextPort.Lock()
	defer nextPort.Unlock()
	if nextPort.n == 0 {
		nextPort.n = rand.IntN(count)
	}
	for found, tries := 0, 0; found < len(ports); tries++ {
		if tries > count {
			return fmt.Errorf("no free ports from %d to %d", first, first+count)
		}
		nextPort.n = (nextPort.n + 1) % count
		l, err := net.Listen("tcp", Local(first+nextPort.n))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return err
		}
		*ports[found] = first + nextPort.n
		found++
	}
	return nil
}

// Local is the address of a port of the loopback.
func Local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// Properties of a configuration file as Hadoop and Hive read it.
type Properties map[string]string

// Write makes the file, or replaces it.
func (p Properties) Write(file string) error {
	var b bytes.Buffer
	b.WriteString("<configuration>\n")
	for _, k := range slices.Sorted(maps.Keys(p)) {
		b.WriteString("  <property><name>" + k + "</name><value>")
		if err := xml.EscapeText(&b, []byte(p[k])); err != nil {
			return err
		}
		b.WriteString("</value></property>\n")
	}
	b.WriteString("</configuration>\n")
	return os.WriteFile(file, b.Bytes(), 0o644)
}
