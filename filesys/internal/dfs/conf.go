package dfs

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/colinmarc/hdfs/v2/hadoopconf"
)

// Service is one name service, as Hadoop's configuration files describe it.
type Service struct {
	Name string
	// RPC and Web are host:port of the servers of its name nodes, in one order.
	RPC, Web []string
	// TLS: the web servers are to be reached by https.
	TLS bool
	// Kerberos: the cluster wants proof of who is there.
	Kerberos bool
}

// URLs of the web servers.
func (s Service) URLs() []string {
	scheme := "http://"
	if s.TLS {
		scheme = "https://"
	}
	var out []string
	for _, a := range s.Web {
		out = append(out, scheme+a)
	}
	return out
}

// ErrNoService: the files describe no name service of that name.
var ErrNoService = errors.New("no such name service")

// ReadConf finds a name service in the configuration files of a directory. The
// service is named as in dfs.nameservices, or as the host, with or without a
// port, in fs.defaultFS. Name nodes of several services are never mixed: all of
// them have files of the same paths.
func ReadConf(dir, service string) (Service, error) {
	conf, err := hadoopconf.Load(dir)
	if err != nil {
		return Service{}, fmt.Errorf("hadoop configuration: %w", err)
	}
	if conf == nil {
		return Service{}, fmt.Errorf("hadoop configuration: neither core-site.xml nor hdfs-site.xml is in %s", dir)
	}
	c := config(conf)
	s := Service{Name: service, TLS: c.get("dfs.http.policy") == "HTTPS_ONLY", Kerberos: strings.EqualFold(c.get("hadoop.security.authentication"), "kerberos")}
	web := "dfs.namenode.http-address"
	if s.TLS {
		web = "dfs.namenode.https-address"
	}
	if slices.Contains(c.services(), service) {
		suffixes := []string{"." + service}
		if ids := c.list("dfs.ha.namenodes." + service); len(ids) > 0 {
			suffixes = nil
			for _, id := range ids {
				suffixes = append(suffixes, "."+service+"."+id)
			}
		}
		for _, suffix := range suffixes {
			rpc := c.get("dfs.namenode.rpc-address" + suffix)
			if rpc == "" {
				return s, fmt.Errorf("hadoop configuration in %s: dfs.namenode.rpc-address%s is missing", dir, suffix)
			}
			s.RPC = append(s.RPC, rpc)
			if a := c.get(web + suffix); a != "" {
				s.Web = append(s.Web, a)
			}
		}
		if len(s.Web) != len(s.RPC) {
			s.Web = nil // a part of them would be asked about all
		}
		return s, nil
	}
	host, port := c.defaultFS()
	if host == "" || service != host && service != net.JoinHostPort(host, port) || slices.Contains(c.services(), host) {
		return s, fmt.Errorf("hadoop configuration in %s: %w as %q; there are: %s", dir, ErrNoService, service, strings.Join(Services(conf), ", "))
	}
	rpc := c.get("dfs.namenode.rpc-address")
	if rpc == "" {
		rpc = net.JoinHostPort(host, port)
	}
	s.RPC = []string{rpc}
	if a := c.get(web); a != "" && !strings.HasPrefix(a, "0.0.0.0:") {
		s.Web = []string{a}
	}
	return s, nil
}

// Services are the names that ReadConf knows in the files of a directory.
func Services(conf hadoopconf.HadoopConf) []string {
	c := config(conf)
	out := c.services()
	if host, port := c.defaultFS(); host != "" && !slices.Contains(out, host) {
		out = append(out, net.JoinHostPort(host, port))
	}
	return out
}

// ConfServices reads the files of a directory, one of which must be there.
func ConfServices(dir string) ([]string, error) {
	conf, err := hadoopconf.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("hadoop configuration: %w", err)
	}
	if conf == nil {
		return nil, fmt.Errorf("hadoop configuration: neither core-site.xml nor hdfs-site.xml is in %s", dir)
	}
	return Services(conf), nil
}

type config hadoopconf.HadoopConf

// get expands ${name}, as Hadoop does.
func (c config) get(key string) string {
	v := strings.TrimSpace(c[key])
	for range 20 { // Hadoop's own limit
		i := strings.Index(v, "${")
		if i < 0 {
			break
		}
		j := strings.IndexByte(v[i:], '}')
		if j < 0 {
			break
		}
		v = v[:i] + strings.TrimSpace(c[v[i+2:i+j]]) + v[i+j+1:]
	}
	return v
}

func (c config) list(key string) []string {
	return strings.FieldsFunc(c.get(key), func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

// services of this cluster: those of others may be known for reading.
func (c config) services() []string {
	if own := c.list("dfs.internal.nameservices"); len(own) > 0 {
		all := c.list("dfs.nameservices")
		return append(own, slices.DeleteFunc(all, func(s string) bool { return slices.Contains(own, s) })...)
	}
	return c.list("dfs.nameservices")
}

// defaultPort of a name node's RPC server.
const defaultPort = "8020"

func (c config) defaultFS() (host, port string) {
	v := c.get("fs.defaultFS")
	if v == "" {
		v = c.get("fs.default.name")
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "hdfs" {
		return "", ""
	}
	port = u.Port()
	if port == "" {
		port = defaultPort
	}
	return u.Hostname(), port
}
