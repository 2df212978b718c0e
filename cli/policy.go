package cli

import (
	"time"

	"github.com/commitstep/engine/driver"
	"github.com/spf13/pflag"
)

// policyFlags are how often and how long steps are tried before a sequence is
// parked; see driver.Policy. Zero is the driver's default.
type policyFlags struct {
	budget        time.Duration
	unknownBudget time.Duration
	maxAttempts   int
}

func (p *policyFlags) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&p.budget, "budget", 0, "how long to wait for what cannot be reached (default 2m)")
	f.DurationVar(&p.unknownBudget, "unknown-budget", 0, "how long to look again at an unknown effect before it is parked (default 2m)")
	f.IntVar(&p.maxAttempts, "max-attempts", 0, "failed attempts of one step before it is parked (default 4)")
}

func (p policyFlags) check(f *pflag.FlagSet) error {
	for name, d := range map[string]time.Duration{"budget": p.budget, "unknown-budget": p.unknownBudget} {
		if f.Changed(name) && d <= 0 {
			return usagef("--%s must be longer than nothing, as 30s", name)
		}
	}
	if f.Changed("max-attempts") && p.maxAttempts < 1 {
		return usagef("--max-attempts must be at least 1")
	}
	return nil
}

func (p policyFlags) apply(c *driver.Config) {
	c.Policy.WaitBudget, c.Policy.RecoverBudget = p.budget, p.budget
	c.Policy.UnknownBudget, c.Policy.MaxAttempts = p.unknownBudget, p.maxAttempts
}
