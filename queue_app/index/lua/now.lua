-- Returns the time by the index's own clock (us), which never goes back and exceeds the stamp of any lease.
--! include keys
local now = now_us()
return whole(math.max(now, within(redis.call('HGET', GENERATION, 'stamp'), now + FAR_US)))
