package driver

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boot is the time since boot, suspended time included (CLOCK_BOOTTIME).
func (SystemClock) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Duration(time.Now().UnixNano())
	}
	return time.Duration(ts.Nano())
}
