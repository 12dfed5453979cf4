-- Counts what runs at the gates that have limits now, about 200 leases per call; set_limits.lua says when.
--
-- ARGV[1]  gate whose limits are new, or have gone: 'q:queue', 't:type' or 'k:key'    ARGV[2]  cursor ('0' at first)
-- Returns  the next cursor; '0' when all leases have been counted
--! include counting
local kind, name = string.sub(ARGV[1], 1, 1), string.sub(ARGV[1], 3)
local page = redis.call('HSCAN', LEASES, ARGV[2], 'COUNT', 200)
count_leases(page[2])
if page[1] == '0' then redis.call('HDEL', kind == 'q' and queue_key(name) or limit_key(ARGV[1]), 'counting') end
return page[1]
