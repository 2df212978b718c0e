package webhdfs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options of a file system. Name and URLs are required; the zero value of
// every other field is its default.
type Options struct {
	// Name of the resource: addresses are webhdfs://Name/path.
	Name string
	// URLs of the web servers of all name nodes of one name service, such as
	// http://host:9870. Never name those of two: both have files of the same
	// paths.
	URLs []string
	// User acts on the name node where nobody proves who he is. With a
	// delegation token or a Transport that authenticates leave it empty.
	User string
	// Token gives the delegation token for a request; nil or "" sends none. It
	// is asked for every request, so that it can be renewed. It never appears
	// in an error.
	Token func() (string, error)
	// Namespace is recorded with every file in place of what the name node's
	// management page tells. Needed where that page is closed; it must change
	// when another cluster gets the name.
	Namespace string
	// Root that no address may leave. Default "/".
	Root string
	// QuotaDirs are directories that have a quota, which is looked at when a move
	// into them is planned. Of a directory without one the name node would count
	// the whole tree for every plan.
	QuotaDirs []string
	// Connections to each server. Default 8.
	Connections int
	// CallTimeout bounds every request. Default 20 s.
	CallTimeout time.Duration
	// Wait bounds how long a call waits while no name node serves. Default
	// 15 s; the engine waits on its own after that.
	Wait time.Duration

	// TLS configures https. Nil is the system's.
	TLS *tls.Config
	// Transport replaces the HTTP transport, for authentication (SPNEGO). It
	// must not repeat requests.
	Transport http.RoundTripper
}

const apiPath = "/webhdfs/v1"

func (o *Options) complete() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if o.Name == "" || strings.ContainsAny(o.Name, "/@?#%") {
		bad("the name %q of the file system is empty or holds one of / @ ? # %%", o.Name)
	}
	if len(o.URLs) == 0 {
		bad("no URL of a name node; give http://host:port of its web server")
	}
	urls := make([]string, len(o.URLs))
	for i, text := range o.URLs {
		u, err := url.Parse(text)
		switch {
		case err != nil:
			// The text may hold a password.
			bad("URL %d of the name nodes is malformed", i+1)
		case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
			bad("URL %d of the name nodes is not http://host:port or https://host:port", i+1)
		case u.User != nil:
			bad("URL %d of the name nodes holds a user; give it as an option", i+1)
		case u.RawQuery != "" || u.Fragment != "":
			bad("URL %d of the name nodes has a query", i+1)
		default:
			urls[i] = u.Scheme + "://" + u.Host + strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), apiPath)
		}
	}
	o.URLs = urls
	if o.Connections == 0 {
		o.Connections = 8
	}
	if o.Connections < 0 || o.CallTimeout < 0 || o.Wait < 0 {
		bad("a number of connections or a time is negative")
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 20 * time.Second
	}
	if o.Wait == 0 {
		o.Wait = 15 * time.Second
	}
	if o.TLS != nil && o.Transport != nil {
		bad("TLS and Transport exclude each other: configure TLS in the transport")
	}
	if len(errs) > 0 {
		return fmt.Errorf("webhdfs %q: %w", o.Name, errors.Join(errs...))
	}
	return nil
}
