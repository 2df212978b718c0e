package pgstore

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Location is the address of a store as a person can give it again: with the
// user and the settings that dsn has, and with what it takes from the libpq
// environment, but without a password.
func Location(dsn string, o *Options) (string, error) {
	opts := o.withDefaults()
	cfg, err := config(dsn, &opts)
	if err != nil {
		return "", err
	}
	return address(dsn, cfg, opts.Schema), nil
}

// location names the store for people: where it is, and nothing of who looks or
// how, so that it is the same for all.
func location(cfg *pgxpool.Config, schema string) string {
	return place(cfg, "", map[string]string{"schema": schema})
}

func address(dsn string, cfg *pgxpool.Config, schema string) string {
	more := map[string]string{}
	for name, value := range given(dsn) {
		switch name {
		case "host", "hostaddr", "port", "user", "dbname", "database", "password", "sslpassword":
		default:
			more[name] = value
		}
	}
	more["schema"] = schema
	return place(cfg, cfg.ConnConfig.User, more)
}

// place is a URL that libpq reads as we do. Several servers, of which one takes
// writes, all stand in it.
func place(cfg *pgxpool.Config, user string, more map[string]string) string {
	q := url.Values{}
	for name, value := range more {
		q.Set(name, value)
	}
	hosts, ports := servers(cfg)
	u := url.URL{Scheme: "postgres", Path: "/" + cfg.ConnConfig.Database}
	switch {
	case len(hosts) > 1:
		q.Set("host", strings.Join(hosts, ","))
		q.Set("port", strings.Join(ports, ","))
	case strings.HasPrefix(hosts[0], "/"):
		q.Set("host", hosts[0])
		u.Host = ":" + ports[0]
	default:
		u.Host = net.JoinHostPort(hosts[0], ports[0])
	}
	if user != "" {
		u.User = url.User(user)
	}
	// A plus sign for a space is only for forms of the web.
	u.RawQuery = strings.NewReplacer("+", "%20", "%2C", ",").Replace(q.Encode())
	return u.String()
}

// servers are the hosts and ports of the address, each pair once: the library
// tries some of them in several ways.
func servers(cfg *pgxpool.Config) (hosts, ports []string) {
	add := func(host string, port uint16) {
		p := strconv.Itoa(int(port))
		for i := range hosts {
			if hosts[i] == host && ports[i] == p {
				return
			}
		}
		hosts, ports = append(hosts, host), append(ports, p)
	}
	add(cfg.ConnConfig.Host, cfg.ConnConfig.Port)
	for _, f := range cfg.ConnConfig.Fallbacks {
		add(f.Host, f.Port)
	}
	return hosts, ports
}

// given are the parameters that an address names.
func given(dsn string) map[string]string {
	out := map[string]string{}
	if strings.HasPrefix(dsn, "postgres:") || strings.HasPrefix(dsn, "postgresql:") {
		_, query := splitURL(dsn)
		for _, part := range strings.Split(query, "&") {
			if name, value, err := parameter(part); err == nil && name != "" {
				out[name] = value
			}
		}
		return out
	}
	for left := dsn; left != ""; {
		m := keyword.FindStringSubmatch(left)
		if m == nil {
			break
		}
		left = left[len(m[0]):]
		out[m[1]] = plainValue(m[2])
	}
	return out
}
