"""The TimerWheel and the TimerLog: which timers are due at which millisecond."""
